"""The dashboard: pages for a browser that show a node and change it. The server makes them; nothing comes from outside.

Pages read the node by an ordinary client with the identity of the browser's user, so the rules hold for them, too. The
node imports this package only with the setting `http`.
"""

from __future__ import annotations

from stream_node.dashboard.dashboard import Dashboard

__all__ = ["Dashboard"]

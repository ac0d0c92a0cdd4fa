"""Nodes inside a program, for tests: `node` is a real one on a temporary directory, `memory_node` one without disk and
sockets.

    with memory_node() as running, blocking.connect(running.address) as client:
        client.create("orders").push(b"hello")

Both run in a thread of the program, and end with the block or with the program. `stream_node.pytest_plugin` has
fixtures.
"""

from __future__ import annotations

from stream_node.node.process import NodeNotStarted
from stream_node.testing.nodes import HostedNode, NodeNotRunning, memory_node, node

__all__ = ["HostedNode", "NodeNotRunning", "NodeNotStarted", "memory_node", "node"]

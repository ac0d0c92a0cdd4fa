"""`stream-node` without group commit, for comparison: each push to a stream is a transaction and a sync of its own.

python -m bench.servers.ungrouped serve …        as `stream-node serve …`
"""

from __future__ import annotations

from ockam.actors import mailbox
from stream_node.cli.app import main
from stream_service.workers import stream_machine

if __name__ == "__main__":
    # Workers are handed one message at a time; a stream's worker takes the next when the one before is on disk.
    mailbox.RUN_MESSAGES_MAX = stream_machine.STAGED_MESSAGES_MAX = 1
    main()

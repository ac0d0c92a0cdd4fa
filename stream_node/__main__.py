"""`python -m stream_node`: the same as the command `stream-node`."""

from stream_node.cli import main

main()

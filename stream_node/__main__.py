"""Makes `python -m stream_node` run the command `stream-node`."""

from stream_node.cli.app import main

main()

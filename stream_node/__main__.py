"""Runs the command `stream-node`, so that `python -m stream_node` does the same."""

from stream_node.cli import main

main()

"""The command line of `stream-node`. Slow imports are inside the commands, so that `--help` starts quickly."""

from stream_node.cli.app import main

__all__ = ["main"]

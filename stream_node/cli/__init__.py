"""The command line. Heavy imports stand inside the commands, so that `--help` is quick."""

from stream_node.cli.app import main

__all__ = ["main"]

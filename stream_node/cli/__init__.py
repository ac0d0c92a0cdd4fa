"""The command line of `stream-node`. Slow imports are inside the commands, so that `--help` starts quickly."""

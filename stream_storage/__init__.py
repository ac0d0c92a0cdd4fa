"""Storage: the append-only log of many streams in one SQLite file, and the runner that does a node's writes and
reads."""

"""Storage: the append-only log of many streams in one database, and the runner that does a node's writes and reads."""

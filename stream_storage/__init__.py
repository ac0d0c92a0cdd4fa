"""Storage: the append-only log of many streams in one SQLite file, and the runner that does a node's writes and
reads."""

import companion as _companion  # noqa: F401 - first, so that compiled modules are found

"""The write-ahead log of SQLite, read byte by byte: judged after an unclean stop, repaired, surveyed."""

"""The write-ahead log of SQLite, read without SQLite: checked before a start, rewritten, searched for messages."""

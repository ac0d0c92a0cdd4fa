"""Reads the write-ahead log of SQLite without SQLite: checks the log before a start, rewrites it, and finds the
messages in it."""

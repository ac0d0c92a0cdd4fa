"""Checks SQLite's write-ahead log before a node starts, rewrites a damaged log, and finds the messages in the log."""

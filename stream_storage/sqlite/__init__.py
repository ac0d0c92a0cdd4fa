"""The log in a SQLite file: the session, the file, its checkpoints, checks, backups and columns for bulk readers."""

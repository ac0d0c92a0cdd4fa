"""The revisions of the database schema, as scripts of Alembic. `stream_storage.sqlite.migrate` loads and runs them.

Each file is one revision. Its id is the schema version that the revision leads to, in four digits. A revision never
changes once it is released, and imports nothing of this program, because the program's code changes. There are no
downgrades: the way back is the backup that `stream_storage.sqlite.upgrade` makes first.
"""

"""The revisions of the database schema, as scripts of Alembic (`stream_storage.sqlite.migrate`).

Each file is one revision, whose id is the schema version that it leads to, in four digits. A released revision never
changes, and imports nothing of this program, whose code changes. The way back is the backup before the upgrade."""

"""A chain of revisions that only tests run: it goes on from schema version 3, in two steps."""

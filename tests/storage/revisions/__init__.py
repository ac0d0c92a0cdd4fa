"""A chain of revisions that only tests run: it goes on from schema version 2, in two steps."""

"""A chain of revisions that only tests run: it has a step that fails after it has changed something."""

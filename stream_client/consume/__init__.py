"""Reading streams: pages, endless iterations, and consumers that keep their position."""

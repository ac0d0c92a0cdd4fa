"""Reads streams: page by page, by endless iterators, and by consumers that save their position."""

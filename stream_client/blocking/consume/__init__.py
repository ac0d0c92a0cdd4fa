"""Reads streams in the blocking client, by followers and by consumers that save their position."""

"""Mirrors: a node follows streams of another node, and can take their place."""

"""Bulk reads: pages of a stream as Arrow, read by another process so that they hold up neither pushes nor pulls."""

"""Bulk reads: another process reads pages of a stream as Arrow, so that these reads delay neither pushes nor pulls."""

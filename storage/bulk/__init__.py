"""Bulk reads: pages of a stream as Arrow, read by a process of its own."""

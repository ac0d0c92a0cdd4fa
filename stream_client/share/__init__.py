"""Consumers that share the partitions of a stream. Each partition is leased to one consumer at a time."""

"""Consumers that share the partitions of a stream by leases."""

"""The index service: keeps one position for each consumer, stream and partition, and leases partitions to consumers."""

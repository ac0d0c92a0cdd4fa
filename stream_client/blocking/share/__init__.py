"""Consumer groups in the blocking client: the leases of partitions, and the consumer that uses them."""

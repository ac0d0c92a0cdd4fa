"""Consumer groups, in the blocking half: leases and the consumer that reads under them."""

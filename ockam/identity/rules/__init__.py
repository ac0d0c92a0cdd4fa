"""Rules: what each identity is allowed to do on which stream, consumer, chain or other node."""

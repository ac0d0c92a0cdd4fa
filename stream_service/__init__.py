"""Durable, ordered streams over routed messages: the protocols, the workers that serve them, the clients."""

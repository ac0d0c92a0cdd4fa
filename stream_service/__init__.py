"""The stream service: durable, ordered streams over routed messages."""

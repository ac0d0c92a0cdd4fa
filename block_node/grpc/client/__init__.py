"""The side that asks: calls of other block nodes over gRPC."""

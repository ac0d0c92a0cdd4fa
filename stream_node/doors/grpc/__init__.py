"""The gRPC door: listens for the calls of block nodes, consensus nodes and mirror nodes."""

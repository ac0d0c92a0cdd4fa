"""gRPC: the block protocols as real block nodes, consensus nodes and mirror nodes speak them."""

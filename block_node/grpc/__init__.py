"""gRPC: the block protocols as real block nodes, consensus nodes and mirror nodes speak them.

A door is the part of a node that listens for one protocol, with all its connections."""

"""The methods of the block services over gRPC, each with the handler of its calls."""

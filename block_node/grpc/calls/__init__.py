"""The methods of the block services over gRPC, each with what answers its calls."""

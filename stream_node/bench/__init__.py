"""The command `stream-node bench`: measures one node. The project's own benchmark in `bench/` compares programs."""

"""The decisions of a consumer, without I/O: reassembly of blocks, the order of the chain, and reorgs."""

"""The machines without I/O: reassembly, chain order, reorgs, the whole consumer, and a simulation of a chain."""

"""The command `stream-node bench`: measures a node under a load that the user chooses.
It does not compare the node with other programs. The project's own benchmark in `bench/`, which is not installed, does
that."""

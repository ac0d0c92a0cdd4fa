"""The command `stream-node bench`: measures a node under a load that the user chooses.
It compares with nothing. The project's own benchmark in `bench/`, which is not installed, does."""

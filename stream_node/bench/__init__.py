"""The command `stream-node bench`: measures a node under a load that the user chooses.

It does not compare the results with earlier results or with targets. The project's own benchmark in `bench/`, which is
not installed, does this.
"""

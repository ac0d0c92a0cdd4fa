"""The bench of this project: it measures a node on this machine, beside other systems and beside an older checkout.

It is not installed: users measure their own node with `stream-node bench`.
"""

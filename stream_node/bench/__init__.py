"""`stream-node bench`: measures a node with the load that its user chooses.

It compares nothing and holds nothing against goals: the bench of this project does so (`bench/`, not installed).
"""

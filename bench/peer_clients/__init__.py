"""Clients of the peers, each a program of its own: `bench/peers` starts them in an environment with their packages."""

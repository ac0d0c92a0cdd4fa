"""Positions of consumers, kept by name in a node's index service."""

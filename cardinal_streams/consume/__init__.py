"""Consumers: iterations over a chain or over its blocks, and the checkpoints that consumers save."""

"""Consumers as programs use them, and their checkpoints."""

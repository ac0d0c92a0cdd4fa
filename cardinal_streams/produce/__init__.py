"""Producers as programs use them, and the messages that they make of blocks."""

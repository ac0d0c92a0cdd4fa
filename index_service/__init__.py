"""Saved positions: one index per consumer, stream and partition, kept as the highest value ever saved."""

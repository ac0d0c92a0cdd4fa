"""Persisting: verified blocks in the log of one chain, and the index and ranges of what is stored."""

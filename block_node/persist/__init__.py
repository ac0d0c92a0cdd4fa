"""Persisting: storage of the verified blocks of one chain, with an index and the ranges of stored blocks."""

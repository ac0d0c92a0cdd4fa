"""Backfill: finds missing blocks, fetches them from other nodes, and passes them on to be verified and stored."""

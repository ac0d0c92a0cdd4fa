"""Backfill: finds the blocks that are missing, fetches them from other nodes, has them verified and stored."""

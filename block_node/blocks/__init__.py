"""Blocks as bytes: items, Merkle roots, proofs and their verification, block files, generated chains."""

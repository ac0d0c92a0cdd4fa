"""Reads, verifies and generates blocks: items, Merkle roots, proofs, chains and block files."""

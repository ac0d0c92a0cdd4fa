"""Blocks and their verification: items as bytes, files, Merkle roots, proofs, generated chains. No I/O but block files."""

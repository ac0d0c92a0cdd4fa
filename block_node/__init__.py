"""The block node: receives chains of blocks from publishers, verifies and stores them, and serves subscribers."""

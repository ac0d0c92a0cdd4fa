"""The client without I/O: bytes in, answered requests out."""

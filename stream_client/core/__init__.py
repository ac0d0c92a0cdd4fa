"""The client's logic without I/O: it turns received bytes into answered requests, and requests into bytes to send."""

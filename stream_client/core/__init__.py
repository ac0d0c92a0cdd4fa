"""The client's logic without I/O. It turns received bytes into answered requests, and requests into bytes to send."""

"""The I/O of the client: sockets, timers and waiting. One version is for async programs, one for blocking programs."""

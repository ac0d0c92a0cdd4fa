"""Sockets, time and waiting around the core: once for async programs, once for blocking ones."""

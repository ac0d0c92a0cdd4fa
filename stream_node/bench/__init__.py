"""`stream-node bench`: what this machine does, measured with one client process and one server process."""

"""Producers: they turn blocks into messages, and send the messages over a transport."""

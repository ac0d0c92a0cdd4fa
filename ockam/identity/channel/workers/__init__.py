"""The node's side of secure channels: the listener, and a worker for each channel."""

"""gRPC over HTTP/2: frames, windows and calls. The messages of calls are bytes here."""

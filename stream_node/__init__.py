"""The node as a product: configuration, server, command line, demo and bench. No protocol rules."""

__version__ = "0.1.0"

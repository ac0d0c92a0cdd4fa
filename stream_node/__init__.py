"""The stream node as a program: its processes, its doors, its command line and its demo. Other packages hold the rules
of the protocols."""

__version__ = "0.1.0"
"""The version of stream-node."""

__all__ = ["__version__"]

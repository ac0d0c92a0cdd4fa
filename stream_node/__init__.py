"""The stream node as a program: its processes, its doors, its command line and its demo. Other packages hold the rules
of the protocols."""

from companion import VERSION as __version__

__all__ = ["__version__"]

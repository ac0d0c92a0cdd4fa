"""The version of stream-node. The compiled modules are used only with the version that they were built for."""

VERSION = "0.1.0"
"""The version of stream-node, which is `stream_node.__version__` too."""

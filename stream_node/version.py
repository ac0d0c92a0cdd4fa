"""The version of stream-node, for modules that the names of `stream_node` themselves need."""

__version__ = "0.1.0"

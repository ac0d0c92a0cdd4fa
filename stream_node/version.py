"""The version of stream-node, in a module of its own: modules that `stream_node` imports can import it, too."""

__version__ = "0.1.0"

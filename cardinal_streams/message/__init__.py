"""The message layer: keys and values of every message, as values and as bytes."""

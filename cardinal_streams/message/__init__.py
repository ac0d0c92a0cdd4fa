"""The messages of Cardinal Streams, as Python objects and as the bytes of a key and a value."""

"""Reading streams, in the blocking half: followers and consumers that keep their position."""

"""The publishing service: sessions of publishers, the publisher of each block, and acknowledgements."""

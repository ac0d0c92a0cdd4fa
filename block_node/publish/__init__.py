"""Publishing: sessions of publishers, which of them sends which block, and acknowledgements."""

"""The actors that serve streams: one service worker, and one worker for each partition of each stream."""

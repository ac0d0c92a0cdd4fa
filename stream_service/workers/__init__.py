"""The workers that serve streams: the stream service, one worker for each stream-partition, and retention."""

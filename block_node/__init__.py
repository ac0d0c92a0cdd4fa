"""The block node: publish, verify, persist, subscribe, status and access for chains of blocks, on the streams."""

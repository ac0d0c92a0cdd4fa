"""The live view of a node in a terminal, `stream-node top`.

- `reading.py` asks a node.
- `rates.py` computes a view from two readings.
- `screen.py` draws a view with Rich, for any width.
- `live.py` draws again and again, and obeys keys.
"""

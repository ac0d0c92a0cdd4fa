"""Exports a node's messages to tables. `run.py` describes how a run works; `planning.py` chooses its messages."""

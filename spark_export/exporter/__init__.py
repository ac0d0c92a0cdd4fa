"""Exports of a node's messages to tables. `run.py` describes how a run works, and `planning.py` what it takes."""

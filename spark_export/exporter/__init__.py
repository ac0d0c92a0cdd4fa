"""The exporter: a separate process that copies all new messages of a node into a table on disk, each message once.

Each execution that copies the new messages is a run. `run.py` has the steps of a run, `run_machine.py` decides how an
interrupted run is recovered, and `layout.py` defines the paths of all files.
"""

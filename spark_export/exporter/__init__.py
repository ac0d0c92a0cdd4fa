"""The exporter: a separate process that copies all new messages of a node into a table on disk, each message once.

Each execution that copies the new messages is a run. `runs/run.py` has the steps of a run, `runs/run_machine.py`
decides how an interrupted run is recovered, and `tables/layout.py` defines the paths of all files.
"""

"""The exporter: takes everything new from a node into a table directory, each row once. A process of its own.

`run.py` has the steps of a run, `run_machine.py` what follows a crash, `layout.py` what is where on disk.
"""

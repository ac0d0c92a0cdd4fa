"""The exporter: it copies all new messages of a node into a table directory, each message once. It is a process of its
own.

`run.py` has the steps of a run, `run_machine.py` the recovery after a crash, and `layout.py` the places of all files on
disk.
"""

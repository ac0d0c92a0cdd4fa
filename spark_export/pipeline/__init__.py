"""Builds silver tables (decoded) and gold tables (aggregated) with PySpark from bronze, the table of an export.

The modules `silver`, `silver_cardinal` and `gold` have functions of DataFrames, which `examples/pipeline` uses too.
`step` applies these functions to the rows that new messages touch, and `run` to the new rows of an export.
"""

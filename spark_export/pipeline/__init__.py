"""Builds tables from exported messages: bronze (as stored), silver (decoded) and gold (aggregated).

Two implementations compute the same rows. The command in `jobs.py` updates silver and gold tables with pyarrow, without
Spark: `increment` reads new messages, `tables` computes the rows, and `versions` publishes the tables. The second
implementation uses Spark: functions in the `silver_…` modules and in `gold` take DataFrames and return a DataFrame.
These functions do not call the Spark session, so `examples/pipeline` can run them as a declarative pipeline of Spark.

Both implementations call the functions in `assembly`, `canon`, `topics` and `block_rows`. Spark workers run these
functions, so this project must be installed on the workers.
"""

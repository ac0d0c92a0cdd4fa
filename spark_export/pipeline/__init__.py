"""Builds tables from exported messages: bronze (as stored), silver (decoded) and gold (aggregated).

`bronze` reads an exported table of any format as a DataFrame. The functions in the `silver_…` modules and in `gold`
take DataFrames and return a DataFrame. `step` applies them to one micro-batch, and computes what its rows touch;
`outputs` publishes the tables, and `run` repeats steps. The functions do not call the Spark session, so
`examples/pipeline` can run them as a declarative pipeline of Spark.

Spark's workers run the functions in `assembly`, `canon`, `topics` and `block_rows`: this project is installed on the
workers, or `spark_export.shipping` brings it there.
"""

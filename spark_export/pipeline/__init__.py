"""Makes tables from exported messages: bronze (as stored), silver (decoded) and gold (aggregated). An export does not
make these tables; the command in `jobs.py` does.

There are two ways to the same rows. The command keeps the tables up to date with pyarrow alone: `increment` takes new
messages, `tables` has the tables, and `versions` publishes them. The functions in the `silver_…` modules and in `gold`
take Spark's DataFrames and return a DataFrame, without calling the Spark session, so that `examples/pipeline` can run
them as one of Spark's declarative pipelines. Both ways share the functions that decide: `assembly`, `canon`, `topics`
and `block_rows`. Spark's workers call these functions too, so this project must be installed on the workers.
"""

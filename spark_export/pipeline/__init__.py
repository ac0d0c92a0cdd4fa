"""Makes tables from exported messages: bronze (as stored), silver (decoded) and gold (aggregated). An export does not
make these tables; the command in `jobs.py` does.

Every step is a function that takes DataFrames and returns a DataFrame, without calling the Spark session. So `jobs.py`
can run the steps as a plain job, and `examples/pipeline` can run the steps as one of Spark's declarative pipelines.
Spark's workers decode blocks and Cardinal messages, so this project must be installed on the workers.
"""

"""Tables made of exported messages: bronze (as stored), silver (decoded) and gold (aggregated). No export makes them
unasked: `jobs.py` is a command that builds them.

Every step is a function from DataFrames to a DataFrame and asks nothing of a session. So `jobs.py` can run the steps as
a plain job, and `examples/pipeline` can run them as one of Spark's declarative pipelines. Spark's workers decode blocks
and Cardinal messages, so this project must be installed where they run.
"""

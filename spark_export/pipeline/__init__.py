"""From exported messages to answers: bronze (as stored), silver (decoded), gold (aggregated). Only on request.

Every step is a function from DataFrames to a DataFrame that asks nothing of a session, so that `jobs.py` runs them as a
plain job and `examples/pipeline` as one of Spark's declarative pipelines. Workers need this project installed where
they decode.
"""

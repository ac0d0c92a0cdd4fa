"""From exported messages to answers: bronze (as stored), silver (decoded), gold (aggregated). Only on request.

Every step is a function from DataFrames to a DataFrame, so that `jobs.py` can run them as a plain job, and
`declarative/` as one of Spark's declarative pipelines. Workers need this project installed where they decode.
"""

"""The tables of the incremental pipeline. Each module keeps a group of tables up to date: `add` takes new messages, and
`finish` brings the tables into their final state before they are published. No Spark.
"""

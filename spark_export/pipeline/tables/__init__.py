"""Computes the silver and gold tables of the pipeline without Spark.

Each of the modules `message_tables`, `block_tables` and `cardinal_tables` updates a group of tables. First it adds new
messages; then `finish` completes its tables, so that they can be published.
"""

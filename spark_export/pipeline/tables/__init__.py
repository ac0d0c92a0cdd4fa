"""Computes the silver and gold tables of the pipeline without Spark. Each of the modules `message_tables`,
`block_tables` and `cardinal_tables` updates a group of tables. New messages are added first, and `finish` completes the
tables before they are published.
"""

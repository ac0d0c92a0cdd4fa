"""The append-only log of many streams in one SQLite file: contract, schema, the writing thread, verification.

It knows nothing of messages, routes or protocols.
"""

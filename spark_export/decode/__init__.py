"""Turns the data of messages into columns: JSON, CBOR, Avro and Protobuf, each message by itself.

`json_text` reads JSON as Spark's parser does. `typed_values` converts values to the types of columns. `rows` makes the
columns of a page of messages. `spark_export.decoding` chooses the decoder.
"""

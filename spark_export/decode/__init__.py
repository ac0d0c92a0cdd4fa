"""Decodes messages of JSON, CBOR, Avro and Protobuf into columns. Each message is decoded without the other messages.

The module `json_text` parses JSON as Spark does. `typed_values` converts values to the types of columns. `rows` builds
the columns for a page of messages. `spark_export.source.decoding` chooses the decoder.
"""

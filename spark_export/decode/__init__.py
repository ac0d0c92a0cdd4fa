"""Decodes messages of JSON, CBOR, Avro and Protobuf into columns. Every message is decoded by itself.

The module `json_text` reads JSON as Spark's parser does, `typed_values` converts values to the types of columns, and
`rows` makes the columns of a page of messages. `spark_export.decoding` chooses the decoder.
"""

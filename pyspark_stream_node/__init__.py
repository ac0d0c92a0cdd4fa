"""Lets Spark find the format `stream_node` without registration. Spark looks for a class `DefaultSource` in all
packages whose names begin with "pyspark_".

This package contains only that class. `spark_export.source.source.StreamNodeSource` implements the format.
"""

from spark_export.source.source import StreamNodeSource as _StreamNodeSource


class DefaultSource(_StreamNodeSource):
    """The data source `stream_node`, with the class name that Spark looks for."""


__all__ = ["DefaultSource"]

"""Makes Spark find `format("stream_node")` by itself: it looks for `DefaultSource` in packages named `pyspark_*`.

Nothing is here but that name. The source is `spark_export.source.StreamNodeSource`.
"""

from spark_export.source import StreamNodeSource


class DefaultSource(StreamNodeSource):
    """What Spark registers."""


__all__ = ["DefaultSource"]

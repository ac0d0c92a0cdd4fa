"""Makes Spark find `format("stream_node")` by itself: it looks for `DefaultSource` in packages named `pyspark_*`.

Nothing is here but that name. The source is `spark_export.source.StreamNodeSource`.
"""

from spark_export.source import StreamNodeSource as _StreamNodeSource


class DefaultSource(_StreamNodeSource):
    """DefaultSource: the source under the name by which Spark looks for it."""


__all__ = ["DefaultSource"]

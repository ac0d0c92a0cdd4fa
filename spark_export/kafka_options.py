"""Says for each option of Spark's Kafka source and Kafka sink which option of the format `stream_node` does the same.

The errors for unknown options use this table, and `docs/spark.md` shows it. The options are those of Spark 4.3.
"""

from __future__ import annotations

from typing import NamedTuple


class KafkaOption(NamedTuple):
    """An option of Spark's Kafka source or Kafka sink.

    name: with `…` for a family of names. ours: the name of the same option here; None if no option does the same. note:
    what differs here, or what to do without such an option; empty if nothing differs.
    """

    name: str
    ours: str | None
    note: str = ""


CLIENT = "an option of Kafka's own client, which is not used here; leave it out"
GROUP = "there is no consumer group: the checkpoint keeps the position of the query; leave it out"

SOURCE = (
    KafkaOption("kafka.bootstrap.servers", "endpoint", "one address of a node, not a list"),
    KafkaOption("subscribe", "subscribe"),
    KafkaOption("subscribePattern", "subscribePattern", "a regular expression of Python, not of Java"),
    KafkaOption("assign", "assign"),
    KafkaOption("startingOffsets", "startingOffsets"),
    KafkaOption("startingTimestamp", "startingTimestamp", "an error together with another start"),
    KafkaOption("startingOffsetsByTimestamp", "startingOffsetsByTimestamp", "an error together with another start"),
    KafkaOption("startingOffsetsByTimestampStrategy", "startingOffsetsByTimestampStrategy"),
    KafkaOption("endingOffsets", "endingOffsets"),
    KafkaOption("endingTimestamp", "endingTimestamp", "an error together with another end"),
    KafkaOption("endingOffsetsByTimestamp", "endingOffsetsByTimestamp", "an error together with another end"),
    KafkaOption("failOnDataLoss", "failOnDataLoss", "also notices a stream that was deleted and created again"),
    KafkaOption("maxOffsetsPerTrigger", "maxOffsetsPerTrigger"),
    KafkaOption("minOffsetsPerTrigger", "minOffsetsPerTrigger"),
    KafkaOption("maxTriggerDelay", "maxTriggerDelay", "an error without minOffsetsPerTrigger"),
    KafkaOption("minPartitions", "minPartitions"),
    KafkaOption("maxRecordsPerPartition", "maxRecordsPerPartition", "2,000,000 by default; Kafka: no limit"),
    KafkaOption("includeHeaders", "includeHeaders"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", "requestTimeoutMs"),
    KafkaOption("fetchOffset.numRetries", "fetchRetries"),
    KafkaOption("fetchOffset.retryIntervalMs", None, "the interval is always 200 ms; leave it out"),
    KafkaOption("groupIdPrefix", None, GROUP),
    KafkaOption("kafka.group.id", None, GROUP),
    KafkaOption(
        "kafka.isolation.level", None, "there are no transactions: every stored message can be read; leave it out"
    ),
    KafkaOption("kafka.security.protocol", None, "a node has no TLS of its own; reach it through a tunnel"),
    KafkaOption("kafka.sasl.…", None, "a node has no users; reach it through a tunnel"),
    KafkaOption("kafka.ssl.…", None, "a node has no TLS of its own; reach it through a tunnel"),
    KafkaOption("kafka.…", None, CLIENT),
)
SINK = (
    KafkaOption("kafka.bootstrap.servers", "endpoint", "one address of a node, not a list"),
    KafkaOption("topic", "stream", "the column of this name has precedence here; with Kafka the option has"),
    KafkaOption("includeHeaders", None, "a column headers is always written; leave it out"),
    KafkaOption("kafka.…", None, CLIENT),
)

_OLD_NAMES = {"bootstrap.servers": "endpoint"}
"""Names, in lower case, that Kafka's tools use and Spark's source does not, and our names."""


def our_name(name: str) -> str | None:
    """Returns the name of our option that does the same as an option of Kafka's; None if there is none."""
    lower = name.lower()
    for option in (*SOURCE, *SINK):
        if option.name.lower() == lower and option.ours:
            return option.ours
    return _OLD_NAMES.get(lower)


def advice(name: str) -> str | None:
    """Returns what to do about an option of Kafka's that has no counterpart here; None for another option."""
    lower = name.lower()
    for option in (*SOURCE, *SINK):
        family = option.name.removesuffix("…").lower()
        is_meant = lower.startswith(family) if option.name.endswith("…") else lower == family
        if is_meant and option.ours is None:
            return option.note
    return None

"""A table of the options of Spark's Kafka source and Kafka sink, with the equivalent options of `stream_node`.

An error for an unknown option names the equivalent from this table, which `docs/spark.md` also shows. The Kafka options
are those of Spark 4.3.
"""

from __future__ import annotations

from typing import NamedTuple


class KafkaOption(NamedTuple):
    """An option of Spark's Kafka source or Kafka sink.

    name: the name of the option; a name that ends with `…` stands for all names with this prefix.
    ours: the equivalent option of the format `stream_node`; None if there is none.
    note: the difference to Kafka, or the advice if there is no equivalent option; empty if nothing differs.
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
    KafkaOption("maxTriggerDelay", "maxTriggerDelay", "also 5 minutes; an error without minOffsetsPerTrigger"),
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
    KafkaOption("kafka.security.protocol", None, "tlsCa turns on TLS; leave it out"),
    KafkaOption("kafka.sasl.…", None, "leave it out: a certificate (tlsCert) or a token says who you are"),
    KafkaOption("kafka.ssl.…", None, "leave it out: tlsCa, tlsCert and tlsKey name PEM files on each executor"),
    KafkaOption("kafka.…", None, CLIENT),
)
SINK = (
    KafkaOption("kafka.bootstrap.servers", "endpoint", "one address of a node, not a list"),
    KafkaOption("topic", "stream", "the column of this name has precedence here; with Kafka the option has"),
    KafkaOption("includeHeaders", None, "a column headers is always written; leave it out"),
    KafkaOption("kafka.…", None, CLIENT),
)

_OLD_NAMES = {"bootstrap.servers": "endpoint"}
"""Maps option names of Kafka's own tools, which Spark's Kafka source lacks, to options of `stream_node`."""


def our_name(name: str) -> str | None:
    lower = name.lower()
    for option in (*SOURCE, *SINK):
        if option.name.lower() == lower and option.ours:
            return option.ours
    return _OLD_NAMES.get(lower)


def advice(name: str) -> str | None:
    lower = name.lower()
    for option in (*SOURCE, *SINK):
        family = option.name.removesuffix("…").lower()
        is_meant = lower.startswith(family) if option.name.endswith("…") else lower == family
        if is_meant and option.ours is None:
            return option.note
    return None

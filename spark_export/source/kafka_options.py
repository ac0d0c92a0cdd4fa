"""Kafka's options: a query for Spark's Kafka source or sink runs here if only the name of the format is changed.

The tables `SOURCE` and `SINK`, which `docs/spark.md` shows, say how each option of Spark 4.3 is handled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from spark_export.errors import OptionError

logger = logging.getLogger("stream_node.spark")


class KafkaOption(NamedTuple):
    """An option of Spark's Kafka source or Kafka sink.

    name: the name of the option; a name that ends with `…` stands for all names with this prefix.
    ours: the equivalent option of the format `stream_node`; None: the option is ignored.
    note: the difference to Kafka, or why the option is ignored; empty if nothing differs.
    is_refused: whether the option is an error, because a query without it would do something else.
    """

    name: str
    ours: str | None
    note: str = ""
    is_refused: bool = False


POLL = "it bounds one poll, which Kafka repeats; requestTimeoutMs bounds all repetitions"
CLIENT = "an option of Kafka's own client, which is not used here"
GROUP = "there is no consumer group: the checkpoint keeps the position of the query"
PLAINTEXT = "PLAINTEXT"
SECURITY = (
    KafkaOption("kafka.security.protocol", None, f"tlsCa turns on TLS; {PLAINTEXT} is ignored", True),
    KafkaOption("kafka.sasl.…", None, "a certificate (tlsCert) or a token says who you are", True),
    KafkaOption("kafka.ssl.…", None, "tlsCa, tlsCert and tlsKey name PEM files on each executor", True),
    KafkaOption("kafka.…", None, CLIENT),
)

TIMES = "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"
SAME = "assign", "startingOffsets", *TIMES, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"
SOURCE = (
    KafkaOption("kafka.bootstrap.servers", "endpoint", "addresses of a node, or of several members of one cluster"),
    KafkaOption("subscribe", "subscribe"),
    KafkaOption("subscribePattern", "subscribePattern", "a regular expression of Python, not of Java"),
    *(KafkaOption(name, name) for name in SAME),
    KafkaOption("failOnDataLoss", "failOnDataLoss", "also notices a stream that was deleted and created again"),
    *(KafkaOption(name, name) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")),
    KafkaOption("maxTriggerDelay", "maxTriggerDelay", "also 5 minutes"),
    KafkaOption("minPartitions", "minPartitions"),
    KafkaOption("maxRecordsPerPartition", "maxRecordsPerPartition", "2,000,000 by default; Kafka: no limit"),
    KafkaOption("includeHeaders", "includeHeaders"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", None, POLL),
    KafkaOption("fetchOffset.numRetries", None, "requestTimeoutMs says for how long a call is repeated"),
    KafkaOption("fetchOffset.retryIntervalMs", None, "the intervals grow from 0.2 to 2 seconds"),
    KafkaOption("groupIdPrefix", None, GROUP),
    KafkaOption("kafka.group.id", None, GROUP),
    KafkaOption("kafka.isolation.level", None, "there are no transactions: every stored message can be read"),
    *SECURITY,
)
SINK = (
    KafkaOption("kafka.bootstrap.servers", "endpoint", "addresses of a node, or of several members of one cluster"),
    KafkaOption("topic", "topic"),
    KafkaOption("includeHeaders", None, "a column headers is always written"),
    *SECURITY,
)

OTHER_NAMES = {"bootstrap.servers": "endpoint"}
"""Maps option names of Kafka's own tools, which Spark's Kafka source lacks, to options of `stream_node`."""


def without_kafkas_names(given: Mapping[str, str]) -> dict[str, str]:
    """Returns options under our names. Options that are ignored are left out and logged. Raises OptionError for an
    option that is refused. An option under our name has precedence."""
    found: dict[str, str] = {}
    ours: dict[str, str] = {}
    for name, value in given.items():
        meant = (each for each in (*SOURCE, *SINK) if fnmatchcase(name.lower(), each.name.lower().replace("…", "*")))
        option = next(meant, None)
        if option is None or (option.ours or "").lower() == name.lower():
            ours[name] = value
        elif option.ours is not None:
            found[option.ours] = value
        elif option.is_refused and value.strip().upper() != PLAINTEXT:
            raise OptionError(f"the option {name!r} is not served: {option.note}; leave it out")
        else:
            logger.info("the option %r is ignored: %s", name, option.note)
    names = {name.lower() for name in ours}
    return {name: value for name, value in found.items() if name.lower() not in names} | ours

"""Goal: a wrong option fails where it is given, and says what was meant. Method: options alone; no Spark."""

from __future__ import annotations

import re

import pytest

from spark_export.errors import OptionError
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS, read_options, write_options
from spark_export.source.plan import EARLIEST, LATEST

READ = {"subscribe": "orders"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("endpont", "endpoint"),
        ("bootstrap.servers", "endpoint"),
        ("max.offsets.per.trigger", "maxOffsetsPerTrigger"),
        ("includeheader", "includeHeaders"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, meant: str) -> None:
    """Goal: a slip, or Kafka's own name, is answered with ours."""
    with pytest.raises(OptionError, match=f"no option '{name}'; did you mean {meant}"):
        read_options(READ | {name: "1"})


def test_an_option_like_nothing_lists_all() -> None:
    """Goal: who guesses sees what there is."""
    with pytest.raises(OptionError, match=r"there are: assign, .*verifyChecksums"):
        read_options(READ | {"zzz": "1"})


def test_case_does_not_matter() -> None:
    """Goal: as everywhere in Spark. Method: Spark hands names on in lower case."""
    assert read_options({"SUBSCRIBE": "a, b,a", "INCLUDEheaders": "TRUE"}).subscribe == ("a", "b")


def test_what_spark_adds_to_the_options_is_no_slip() -> None:
    """Goal: a query with a name and a checkpoint may read and write. Method: the options that Spark 4.3 adds."""
    added = {"checkpointLocation": "/tmp/c", "queryname": "copy"}
    assert read_options(READ | added) == read_options(READ)
    assert write_options({"topic": "t"} | added, streaming=True) == write_options({"topic": "t"}, streaming=True)


def test_defaults_are_those_of_kafkas_source() -> None:
    """Goal: nobody is surprised. Method: what an empty set of options means."""
    options = read_options(READ)
    assert (options.starting, options.ending, options.fail_on_data_loss) == (None, LATEST, True)
    assert (options.include_headers, options.max_offsets_per_trigger, options.min_partitions) == (False, None, None)


def test_offsets_are_words_or_json() -> None:
    """Goal: each way to say an offset."""
    asked = READ | {"startingOffsets": '{"orders":{"0":23,"1":-2}}', "endingOffsets": "latest"}
    assert read_options(asked).starting == {"orders": {0: 23, 1: EARLIEST}}
    assert read_options(READ | {"startingOffsets": "Earliest"}).starting == EARLIEST
    of_a_progress = READ | {"startingOffsets": '{"orders":{"0":23,"created_us":{"0":1700000000000000}}}'}
    assert read_options(of_a_progress).starting == {"orders": {0: 23}}


def test_timestamps_are_milliseconds() -> None:
    """Goal: Kafka's unit outside, the node's inside."""
    assert read_options(READ | {"startingTimestamp": "1700000000123"}).starting_time_us == 1_700_000_000_123_000


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "exactly one of subscribe"),
        (READ | {"assign": '{"orders":[0]}'}, "exactly one of subscribe"),
        ({"assign": '{"orders":[-1]}'}, "-1 is below 0"),
        ({"assign": "orders"}, "assign='orders'"),
        ({"subscribePattern": "("}, "subscribePattern='\\('"),
        (READ | {"startingOffsets": "soon"}, "startingOffsets='soon'"),
        (READ | {"startingOffsets": '{"orders":{"0":-3}}'}, "-3 is below -2"),
        (READ | {"startingOffsets": '{"orders":{"0":true}}'}, "True is not a whole number"),
        (READ | {"startingOffsets": '{"orders":{"00":7,"0":8}}'}, "partition 0 of 'orders' is named twice"),
        (READ | {"startingOffsets": '{"orders":{"0":7,"0":8}}'}, "'0' is named twice"),
        (READ | {"endingOffsets": '{"orders":{"0":7},"orders":{"1":8}}'}, "'orders' is named twice"),
        (READ | {"startingOffsetsByTimestamp": '{"orders":{"1":7,"01":8}}'}, "partition 1 of 'orders' is named twice"),
        (READ | {"startingOffsets": '{"orders":{"1_0":7}}'}, "'1_0' is not a whole number"),
        ({"assign": '{"orders":[0],"orders":[1]}'}, "'orders' is named twice"),
        (READ | {"startingOffsetsByTimestamp": "170"}, "write milliseconds since 1970 as JSON"),
        (READ | {"startingOffsetsByTimestamp": '{"orders":5}'}, "write milliseconds since 1970 as JSON"),
        (READ | {"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "-1 is below 0"),
        (READ | {"minOffsetsPerTrigger": "0"}, "at least 1"),
        (
            READ | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger=9 is more than maxOffsetsPerTrigger=8",
        ),
        (READ | {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "write a number and one of us, ms"),
        (READ | {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 weeks"}, "write a number and one of us, ms"),
        (READ | {"columns": "all"}, "kafka or stream"),
        (READ | {"endingOffsets": "earliest"}, "cannot be earliest"),
        (READ | {"endingOffsets": '{"orders":{"0":-2}}'}, "cannot be earliest"),
        (READ | {"maxOffsetsPerTrigger": "0"}, "at least 1"),
        (READ | {"minPartitions": "many"}, "at least 1"),
        (READ | {"failOnDataLoss": "maybe"}, "true or false"),
        (READ | {"window": "1"}, "'window' has no meaning when reading"),
        (READ | {"includeData": "false", "verifyChecksums": "true"}, "verifyChecksums needs the data"),
    ],
)
def test_a_wrong_value_is_an_error(given: dict[str, str], problem: str) -> None:
    """Goal: no bad option is taken for something else."""
    with pytest.raises(OptionError, match=problem):
        read_options(given)


KAFKAS_OWN = (
    *("kafka.bootstrap.servers", "assign", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingTimestamp"),
    *("endingOffsetsByTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "includeHeaders", "kafkaConsumer.pollTimeoutMs"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "kafka.group.id", "topic"),
    *("kafka.ssl.truststore.location", "kafka.security.protocol", "kafka.sasl.mechanism", "kafka.max.poll.records"),
)
"""The options that the guide of Spark 4.3 for Kafka names, and some of Kafka's client."""


@pytest.mark.parametrize("name", KAFKAS_OWN)
def test_each_of_kafkas_options_is_served_or_answered(name: str) -> None:
    """Goal: a query of Kafka's that is tried here runs, or says for each option what to do. Method: each option alone;
    an error about its value means that the name is known."""
    try:
        read_options(READ | {name: "?"} if name.lower() != "subscribe" else READ)
    except OptionError as error:
        problem = str(error)
        assert "there are:" not in problem
        assert "there is no option" not in problem
        assert ("is not served" in problem) == name.startswith(("kafka.ssl", "kafka.sasl", "kafka.security")), problem


def test_kafkas_names_are_ours_and_what_means_nothing_here_is_ignored() -> None:
    """Goal: the options of a job for Kafka give the options that it means. Method: all kinds of names in one job."""
    kafkas = {"kafka.bootstrap.servers": "a:1,b:2", "kafkaConsumer.pollTimeoutMs": "512", "kafka.group.id": "g"}
    plain = {"kafka.security.protocol": "PLAINTEXT", "fetchOffset.numRetries": "3", "kafka.max.poll.records": "1"}
    options = read_options(READ | kafkas | plain)
    # A poll of Kafka's is repeated. As the bound of all repetitions, its time would end queries while a node restarts.
    assert (options.endpoint, options.request_timeout_s) == ("a:1,b:2", read_options(READ).request_timeout_s)
    assert read_options(READ | kafkas | {"endpoint": "c:3"}).endpoint == "c:3"
    written = write_options({"topic": "t", "stream": "s", "includeHeaders": "true", "kafka.acks": "all"})
    assert (written.stream, written.is_for_all) == ("t", True)
    for name, value in (("kafka.security.protocol", "SSL"), ("kafka.sasl.mechanism", "PLAIN")):
        with pytest.raises(OptionError, match=f"the option '{name}' is not served: .*leave it out"):
            write_options({"topic": "t", name: value})


def test_a_time_has_precedence_over_an_index_as_with_kafka() -> None:
    """Goal: a job that names several starts and ends begins and ends where it does with Kafka."""
    both = READ | {
        "startingOffsets": "latest",
        "startingTimestamp": "1",
        "endingTimestamp": "2",
        "endingOffsets": "latest",
    }
    both |= {"startingOffsetsByTimestamp": '{"orders":{"0":9}}', "maxTriggerDelay": "5m"}
    options = read_options(both)
    assert (options.starting, options.starting_time_us, options.ending_time_us) == (None, 1_000, 2_000)


def test_durations_have_units() -> None:
    """Goal: as in Spark; a bare number is milliseconds."""
    delays = {"15m": 900, "2min": 120, "90s": 90, "500": 0.5, "250ms": 0.25, "1h": 3600, "1 d": 86400}
    delays |= {"5 minutes": 300, "1 minute": 60, "2 seconds": 2, "3 days": 259_200, "7 milliseconds": 0.007}
    for text, seconds in delays.items():
        given = READ | {"minOffsetsPerTrigger": "1", "maxTriggerDelay": text}
        assert read_options(given).max_trigger_delay_s == seconds
    assert read_options(READ).max_trigger_delay_s == 900


def test_times_are_given_for_each_partition() -> None:
    """Goal: Kafka's JSON; milliseconds outside, microseconds inside."""
    given = READ | {"startingOffsetsByTimestamp": '{"orders":{"0":1700000000123,"1":5}}'}
    assert read_options(given).starting_time_us == {"orders": {0: 1_700_000_000_123_000, 1: 5_000}}


def test_the_docstring_lists_every_option() -> None:
    """Goal: who asks for help in Python sees what there is. Method: each name in it, as it is written."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from spark_export.source.source import StreamNodeSource

    listed = set(re.findall(r"`(\w+)`", StreamNodeSource.__doc__ or ""))
    assert {*READ_OPTIONS, *WRITE_OPTIONS} - listed == set()


def test_an_option_for_reading_is_refused_when_writing() -> None:
    """Goal: an option that would do nothing is an error too."""
    with pytest.raises(OptionError, match="'subscribe' has no meaning when writing"):
        write_options({"subscribe": "orders"})


def test_a_pattern_that_python_warns_of_gives_no_warning() -> None:
    """Goal: no line of Python's among those of an export. Method: warnings are errors in tests."""
    assert read_options({"subscribePattern": "[[]a"}).pattern == "[[]a"
    pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    from spark_export.exporter.node_side import Selection

    assert Selection(pattern="[[]b").takes("[b")

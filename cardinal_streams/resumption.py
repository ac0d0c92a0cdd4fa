"""Resumption tokens: texts that say at which offset reading continues in each partition.

A token has the form `topic:partition=offset;…`, ordered by `topic:partition`, the name of the source. A topic can
contain colons, but neither ';' nor '='."""

from __future__ import annotations

from collections.abc import Mapping

from cardinal_streams.errors import ResumptionError


def source_of(topic: str, partition: int) -> str:
    """Returns the name of a partition as a source of messages: `topic:partition`. Raises `ResumptionError` for an empty
    topic, a topic with ';' or '=', and a negative partition."""
    if not topic or partition < 0 or ";" in topic or "=" in topic:
        raise ResumptionError(f"partition {partition} of topic {topic!r} cannot be named in a token")
    return f"{topic}:{partition}"


def split_source(source: str) -> tuple[str, int]:
    """Splits the source name `topic:partition`. Raises `ResumptionError` if the text has another form."""
    topic, colon, partition = source.rpartition(":")
    if not colon or not topic or not _is_number(partition):
        raise ResumptionError(f"{source!r} is not topic:partition")
    return topic, int(partition)


def format_token(position: Mapping[str, int]) -> str:
    return ";".join(f"{source}={position[source]}" for source in sorted(position))


def parse_token(token: str) -> dict[str, int]:
    """Returns the offset of each source in a token, which can be empty. Raises `ResumptionError`."""
    position: dict[str, int] = {}
    for part in token.split(";") if token else ():
        source, equals, offset = part.partition("=")
        if not equals or not _is_number(offset):
            raise ResumptionError(f"{part!r} is not topic:partition=offset")
        split_source(source)
        if source in position:
            raise ResumptionError(f"{source!r} is named twice")
        position[source] = int(offset)
    return position


def _is_number(text: str) -> bool:
    # `int` refuses numbers with thousands of digits; no 64-bit number has more than 20.
    return text.isascii() and text.isdigit() and len(text) <= 20

"""Resumption tokens: how far each source was read, as the text `topic:partition=offset;…`, ordered by source.

The offset is where reading goes on. A topic may contain colons, but neither ';' nor '='.
"""

from __future__ import annotations

from collections.abc import Mapping

from cardinal_streams.errors import ResumptionError


def source_of(topic: str, partition: int) -> str:
    """The name of a partition of a topic in tokens and in the machines."""
    if not topic or partition < 0 or ";" in topic or "=" in topic:
        raise ResumptionError(f"partition {partition} of topic {topic!r} cannot be named in a token")
    return f"{topic}:{partition}"


def split_source(source: str) -> tuple[str, int]:
    """Topic and partition. Raises `ResumptionError`."""
    topic, colon, partition = source.rpartition(":")
    if not colon or not topic or not _is_number(partition):
        raise ResumptionError(f"{source!r} is not topic:partition")
    return topic, int(partition)


def format_token(position: Mapping[str, int]) -> str:
    return ";".join(f"{source}={position[source]}" for source in sorted(position))


def parse_token(token: str) -> dict[str, int]:
    """Source to offset; the empty token is no position at all. Raises `ResumptionError`."""
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
    return text.isascii() and text.isdigit()

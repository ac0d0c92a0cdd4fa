"""What a document of OpenAPI cannot say about the HTTP door, for schemathesis: which requests the door refuses all the
same. It is loaded by the process of `tests/stream_node/doors/http/test_schemathesis.py` that runs schemathesis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import schemathesis
from hypothesis import strategies

NAME_BYTES_MAX = 1024
PUBLISHER_ID_BYTES_MAX = 64
WAIT_S_MAX = 60
PARTITIONS_MAX = 1_000
EPOCH = datetime.fromtimestamp(0, UTC)

LINE = strategies.integers().map(lambda number: b"%d" % number) | strategies.just(b'{"a": [1, "b"]}')
schemathesis.openapi.media_type(
    "application/x-ndjson", strategies.lists(LINE, min_size=1, max_size=5).map(lambda lines: b"\n".join(lines))
)


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Leaves out the requests whose fault is in two parameters together, in the size of a text in UTF-8, or in a day
    that no month has. Requests that are wrong on purpose stay."""
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return True
    query, path = case.query or {}, case.path_parameters or {}
    if "key" in query and "key_base64" in query:
        return False
    if ("publisher_id" in query) != ("sequence" in query):
        return False
    texts = [(path.get("name"), NAME_BYTES_MAX), (path.get("client_id"), NAME_BYTES_MAX)]
    texts.append((query.get("publisher_id"), PUBLISHER_ID_BYTES_MAX))
    if any(isinstance(text, str) and len(text.encode()) > most for text, most in texts):
        return False
    return is_real_time(str(query.get("from", "")))


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Shortens the time for which a request waits for a message: most streams of this run stay empty. Asks for few
    partitions where it asks for thousands, which a loaded machine does not make in the time that schemathesis waits."""
    body = case.body
    if isinstance(body, dict) and isinstance(asked := body.get("partitions"), int) and 8 < asked <= PARTITIONS_MAX:
        body["partitions"] = 8
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0 < wait <= WAIT_S_MAX:
        case.query["wait"] = 0.01
    return case


def is_real_time(text: str) -> bool:
    """Whether a start is no time, or one that the calendar has since 1970."""
    if "T" not in text:
        return True
    try:
        return datetime.fromisoformat(text) >= EPOCH
    except (ValueError, OverflowError):
        return False

"""Takes the body of a request apart into messages: one value of JSON, one message on each line, or any bytes.
Bytes are checked and decoded in slices, because decoded values can need a hundred times as much memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice

import msgspec
from starlette.requests import Request

from stream_client.core.pushes import PLAIN_BYTES_MAX
from stream_node.doors.http.problems import Problem

MESSAGES_MAX = 10_000
"""The largest number of messages of one request, so that the answer and the memory for it stay small."""
WHITESPACE = b" \t\r\n"
JSON = "application/json"
LINES = "application/x-ndjson"
RAW = "application/octet-stream"
TEXT = "text/plain"
TYPES = (JSON, LINES, RAW, TEXT)
"""The types of a body, apart from those that end in +json."""
_OTHER_NAMES = {"application/ndjson": LINES, "application/jsonl": LINES, "application/x-jsonlines": LINES}


async def read_messages(request: Request) -> list[bytes]:
    """Returns the messages in the body, with the bytes that were sent. Raises Problem if they are not of its type."""
    kind = body_type(request)
    body = await request.body()
    if kind == LINES:
        return split_lines(body)
    if kind == JSON:
        _check_json(body, "the body")
    _check_size(body, "the message")
    return [body]


def body_type(request: Request) -> str:
    header = request.headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    kind = JSON if kind.startswith("application/") and kind.endswith("+json") else _OTHER_NAMES.get(kind, kind)
    if kind not in TYPES:
        sent = f"not {kind[:80]}" if kind else "and the header Content-Type is missing"
        detail = (
            f"a body is {JSON} (one message), {LINES} (a message on each line) or {RAW} (one message of any bytes), "
            f"{sent}; with curl: -H 'Content-Type: {RAW}' --data-binary @FILE"
        )
        raise Problem(415, "unsupported-media-type", detail, headers={"Accept-Post": ", ".join(TYPES)})
    return kind


def split_lines(body: bytes) -> list[bytes]:
    # An empty line, such as the last one, is no message. The lines come one by one: a body can have millions of them.
    stripped = (each.strip(WHITESPACE) for each in BytesIO(body))
    messages = list(islice(filter(None, stripped), MESSAGES_MAX + 1))
    if len(messages) > MESSAGES_MAX:
        detail = f"the body has more than {MESSAGES_MAX:,} messages; nothing is stored; send it in several requests"
        raise Problem(413, "too-many-messages", detail)
    if not messages:
        raise Problem(400, "no-message", "the body has no message; write one value of JSON on each line")
    # Nearly always all lines are right, and only for an error it matters which one.
    if not are_json(messages, body) or len(max(messages, key=len)) > PLAIN_BYTES_MAX:
        for number, each in enumerate(BytesIO(body), 1):
            if line := each.strip(WHITESPACE):
                _check_json(line, f"line {number}")
                _check_size(line, f"the message in line {number}")
    return messages


def _check_json(data: bytes, where: str) -> None:
    fault = find_json_fault(data)
    if fault is not None:
        detail = f"{where} is no JSON: {fault}; nothing is stored; send bytes that are no JSON as {RAW}"
        raise Problem(400, "not-json", detail)


def _check_size(data: bytes, what: str) -> None:
    if len(data) > PLAIN_BYTES_MAX:
        detail = f"{what} has {len(data):,} bytes, and a stream keeps at most {PLAIN_BYTES_MAX:,}; nothing is stored"
        raise Problem(413, "message-too-large", detail)


SLICE_BYTES = 48 * 1024
"""A multiple of 3, so that no slice needs padding in base64."""
_DECODER = msgspec.json.Decoder(msgspec.Raw)


def find_json_fault(data: bytes) -> str | None:
    """Returns the reason why bytes are not one value of JSON in UTF-8; None if they are."""
    try:
        _DECODER.decode(data)
        # The decoder does not check the text within strings.
        _check_text(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return None


def are_json(values: Sequence[bytes], whole: bytes) -> bool:
    """Whether each of the bytes is one value of JSON in UTF-8. whole: all of them, with any ASCII in between."""
    try:
        for data in values:
            _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return is_text(whole)


def is_text(data: bytes) -> bool:
    try:
        _check_text(data)
    except UnicodeDecodeError:
        return False
    return True


def _check_text(data: bytes) -> None:
    if data.isascii():
        return
    for _ in decoded(data):
        pass


def decoded(data: bytes) -> Iterator[str]:
    """Decodes text in UTF-8, in pieces. Raises UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in slices(data):
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def slices(data: bytes) -> Iterator[bytes]:
    return (data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))

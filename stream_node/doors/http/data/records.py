"""Messages in requests and answers. Takes the body of a request apart into messages: one value of JSON, one message on
each line, or any bytes. Reads messages for a request, and shows them as JSON: a damaged message has a reason in place
of its data. Bytes are checked and decoded in slices, because decoded values can need a hundred times as much memory."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from io import BytesIO
from itertools import chain, count, islice
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import trio
from starlette.requests import Request

from ockam.protocol import REFUSAL
from stream_client import AccessDenied, ClientError, FromIndex, PositionBeyondEnd, RichMessage, Stream, StreamNotFound
from stream_client.arguments import StartLike
from stream_client.core.pushes import PLAIN_BYTES_MAX
from stream_node.cli.values import UsageError, parse_start
from stream_node.doors.http.memory import RequestMemory
from stream_node.doors.http.paging import COPIES, PART_BYTES, pull_counted, pull_cut
from stream_node.doors.http.problems import Problem
from stream_service.page_codec import PackedMessages

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
    """Whether each text is one value of JSON in UTF-8. whole: all texts joined, with any ASCII in between."""
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


Encoding: TypeAlias = Literal["json", "text", "base64"]
Form: TypeAlias = Literal["auto", "text", "base64"]
"""How the data of a message is shown. auto: as JSON if it is JSON, as text if it is text, else as base64."""
NODE_WAIT_S_MAX = 2.0
"""The longest wait for which one request asks the node. Longer waits are several requests, so that a node can stop."""
_MONTH, _DAY = "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_CLOCK, _SECONDS = "([01][0-9]|2[0-3]):[0-5][0-9]", "(:[0-5][0-9](\\.[0-9]{1,9})?)?"
FROM = (
    "^(earliest|latest|first|last|new|[0-9]{1,18}|[0-9]{1,9}s|[0-9]{1,7}m|[0-9]{1,5}h|[0-9]{1,4}d|[0-9]{1,3}w|"
    f"[12][0-9]{{3}}-{_MONTH}-{_DAY}T{_CLOCK}{_SECONDS}(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9]))$"
)
_WITHOUT_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_EPOCH = datetime.fromtimestamp(0, UTC)
_SPACE_FOR_PLUS = re.compile(r"(T\d\d:\d\d(?::\d\d(?:\.\d+)?)?) (\d\d:?\d\d)$")
"""Matches a time whose plus sign has become a space, because it was not written as %2B."""


class DataHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A header of a message. value: its value as text. value_base64: the value, if it is no text."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class DataMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message.

    time: when it was stored, as RFC 3339 in UTC.
    encoding: `json`: `data` is the value; `text`: the text; `base64`: the bytes in base64. `error`: the message cannot
    be read, and `error` says why.
    key: its key as text. key_base64: the key, if it is no text.
    """

    index: int
    encoding: Literal["json", "text", "base64", "error"]
    time: str | None = None
    data: Any = msgspec.UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: list[DataHeader] = []
    error: str | None = None


class Damaged(msgspec.Struct, frozen=True):
    index: int
    reason: str


class PageMessages(NamedTuple):
    """The messages of a page. first_index, next_index: of the partition. resume_index: where the next page begins."""

    messages: Sequence[RichMessage | Damaged]
    first_index: int
    next_index: int
    resume_index: int


def parse_from(text: str) -> StartLike:
    """Returns where reading begins (`latest`: after the last message). Raises Problem if it does not match FROM."""
    names = {"earliest": "first", "latest": "new"}
    text = _SPACE_FOR_PLUS.sub(r"\1+\2", text)
    try:
        if re.fullmatch(FROM, text) is None:
            raise UsageError(f"{text[:80]!r} is none of these")
        return parse_start(names.get(text, text), datetime.now(UTC))
    except UsageError as error:
        detail = f"from is an index, earliest, latest, or a time such as 2026-11-01T08:00:00Z: {error}"
        raise Problem(400, "invalid-request", detail) from error


async def read_found(
    memory: RequestMemory, stream: Stream, start: StartLike, limit: int, wait_s: float = 0.0
) -> PageMessages:
    """Reads a page of messages. While there is none, waits for one, for `wait_s` seconds at most. Raises
    PositionBeyondEnd for an index beyond the end, where a reader would miss the messages before it."""
    deadline_s = trio.current_time() + wait_s
    while True:
        left_s = min(max(0.0, deadline_s - trio.current_time()), NODE_WAIT_S_MAX)
        try:
            page = await pull_counted(memory, stream, start, limit, left_s)
        except (AccessDenied, StreamNotFound):
            raise
        except ClientError as error:
            if not isinstance(start, int | FromIndex):
                raise
            found = await _read_each(memory, stream, start if isinstance(start, int) else start.index, limit)
            if found is None:
                raise error
            return found
        if isinstance(start, int) and page.next_index is not None and start > page.next_index:
            raise PositionBeyondEnd(
                f"index {start} is beyond the end of the stream, which is {page.next_index}: the stream was made again "
                "or put back to an earlier state; read from earliest, or from an index up to there"
            )
        if page.messages or trio.current_time() >= deadline_s:
            break
        # A later page continues where this one ended: "latest" is the end at the time of the request.
        start = page.resume_index
    # The node's own protocol reports both indexes.
    return PageMessages(page.messages, page.first_index or 0, page.next_index or 0, page.resume_index)


async def _read_each(memory: RequestMemory, stream: Stream, index: int, limit: int) -> PageMessages | None:
    """Reads messages one by one, after a failed page. Returns None if no message is damaged after all."""
    info = await stream.info()
    begin = end = max(index, info.first_index)
    damaged, size_bytes = dict[int, Damaged](), 0
    # First without data: this finds the damaged messages, and the memory that the others need.
    while end < min(info.next_index, begin + min(limit, EACH_MAX)) and size_bytes < memory.page_bytes:
        try:
            size_bytes += sum(each.size_bytes for each in (await pull_cut(stream, FromIndex(end), 1, 0)).messages)
        except (AccessDenied, StreamNotFound):
            raise
        except ClientError as error:
            damaged[end] = Damaged(end, str(error).removeprefix(REFUSAL))
        end += 1
    # Without a damaged message, the page has failed for another reason, and the caller has that error.
    if not damaged:
        return None
    messages = list[RichMessage | Damaged]()
    async with memory.making(size_bytes * COPIES):
        for at in range(begin, end):
            messages += [damaged[at]] if at in damaged else (await stream.pull_page(FromIndex(at), 1)).messages
    return PageMessages(messages, info.first_index, info.next_index, end)


EACH_MAX = 100
"""The largest number of messages that are read one by one for a page with a damaged message."""


def joined(messages: Sequence[RichMessage | Damaged], form: Form, between: bytes) -> Iterator[bytes]:
    """Yields messages as JSON, in pieces. between: the bytes between two messages."""
    if isinstance(messages, PackedMessages) and messages.is_plain and form == "auto":
        usual = _joined_usual(messages, between)
        if usual is not None:
            yield from usual
            return
    for number, message in enumerate(messages):
        if number:
            yield between
        yield from pieces_of(message, form)


def _joined_usual(messages: PackedMessages, between: bytes) -> Iterator[bytes] | None:
    """Returns the pieces that `joined` yields, by few calls; None unless all are small values of JSON."""
    times_us, data = messages.columns()
    whole = b"".join(data)
    if not data or len(max(data, key=len)) > PART_BYTES or not are_json(data, whole):
        return None
    # Each value stands in the answer without the spaces between its parts.
    if any(space in whole for space in (b" ", b"\t", b"\r", b"\n")):
        data = [msgspec.json.format(each, indent=-1) for each in data]
    times = (time_text(each).encode() for each in times_us)
    texts = map(USUAL.__mod__, zip(count(messages.start), times, data, strict=False))
    step = 1 + PART_BYTES * len(data) // (len(whole) + 1)
    steps = iter(lambda: between.join(islice(texts, step)), b"")
    return (part for number, part in enumerate(steps) for part in ((between, part) if number else (part,)))


USUAL = b'{"index":%d,"encoding":"json","time":"%b","data":%b}'
"""A `DataMessage` with a value of JSON, without key and headers."""


def pieces_of(message: RichMessage | Damaged, form: Form) -> Iterator[bytes]:
    """Yields a message as JSON, in pieces, so that a large message never has a second form in memory."""
    if isinstance(message, Damaged):
        yield msgspec.json.encode(DataMessage(message.index, "error", error=message.reason))
        return
    data = message.data
    if form == "auto" and find_json_fault(data) is None:
        encoding: Encoding = "json"
    else:
        encoding = "text" if form != "base64" and is_text(data) else "base64"
    if len(data) > PART_BYTES:
        yield msgspec.json.encode(_shown(message, encoding, msgspec.UNSET))[:-1] + b',"data":'
        yield from _data_pieces(data, encoding)
        yield b"}"
    else:
        small = msgspec.json.format(data, indent=-1) if encoding == "json" else b"".join(_data_pieces(data, encoding))
        yield msgspec.json.encode(_shown(message, encoding, msgspec.Raw(small)))


def _shown(message: RichMessage, encoding: Encoding, data: Any) -> DataMessage:
    key, key_base64 = _text_or_base64(message.key)
    headers = [DataHeader(each.name, *_text_or_base64(each.value)) for each in message.headers]
    return DataMessage(message.index, encoding, time_text(message.time_us), data, key, key_base64, headers)


@lru_cache(maxsize=1_000)
def time_text(time_us: int) -> str:
    """Returns a time as RFC 3339 in UTC, with microseconds. Messages of one batch have one time."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        # A copy of a stream can have times that no calendar has.
        return "9999-12-31T23:59:59.999999Z"


def _data_pieces(data: bytes, encoding: Encoding) -> Iterator[bytes]:
    if encoding == "json":
        # The value stands in the answer as it was sent, so large numbers and repeated names stay as they are. Line
        # ends, which are only between its parts, would end a line of NDJSON or of an event.
        return (piece.translate(_WITHOUT_LINE_ENDS) for piece in slices(data))
    if encoding == "text":
        pieces = (msgspec.json.encode(text)[1:-1] for text in decoded(data))
    else:
        pieces = (base64.b64encode(piece) for piece in slices(data))
    return chain((b'"',), pieces, (b'"',))


def _text_or_base64(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(value).decode()

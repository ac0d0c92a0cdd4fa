"""Reads messages from files for the command `push`; prints and searches messages for the commands that read streams."""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from stream_node.cli.output import counted, tell
from stream_node.cli.values import CommandFailed, UsageError, printable_bytes, time_text

if TYPE_CHECKING:
    from stream_client import Header, RichMessage, StreamMessage

LENGTH = struct.Struct(">I")
"""The length before each message of a length-framed file: an unsigned 32-bit big-endian number of bytes."""
CHUNK_BYTES = 256 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest size of a message. No frame carries more, so a larger length means that the file is invalid."""


def read_inputs(files: list[Path], *, whole: bool, framed: bool, crlf: bool = False) -> Iterator[list[bytes]]:
    """Yields the messages of the files, or of standard input: one list for each read, so no message waits for the next.
    whole: each file is one message. framed: each message follows its length. crlf: lines end with CR LF."""

    def split(source: io.FileIO) -> Iterator[list[bytes]]:
        # An input that does not block has None while nothing is there, and ends then.
        chunks = iter(lambda: source.read(CHUNK_BYTES) or b"", b"")
        lines = split_framed(chunks) if framed else split_lines(chunks)
        return ([line.removesuffix(b"\r") for line in batch] for batch in lines) if crlf else lines

    # The reader is unbuffered. A thread that waits in a buffered reader holds a lock that the process needs to exit.
    if not files:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as source:
            yield from ([source.readall()],) if whole else split(source)
    for file in files:
        if whole:
            yield [file.read_bytes()]
            continue
        with file.open("rb", buffering=0) as source:
            yield from split(source)


def split_lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the lines without line feeds, in one list for each chunk. The last one may lack its line feed."""
    begun: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        if others:
            lines = [b"".join(begun), *others]
            begun = [lines.pop()]
            yield lines
    if last := b"".join(begun):
        yield [last]


def split_framed(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the messages of length-framed bytes. Raises UsageError if a message is incomplete or too large."""
    left = bytearray()
    for chunk in chunks:
        left += chunk
        messages, at = [], 0
        while (size_bytes := _framed_bytes(left, at)) is not None and len(left) - at >= LENGTH.size + size_bytes:
            at += LENGTH.size + size_bytes
            messages.append(bytes(left[at - size_bytes : at]))
        del left[:at]
        if messages:
            yield messages
    if left:
        size_bytes = _framed_bytes(left, 0)
        if size_bytes is None:
            raise UsageError(f"the input ends inside a length: {len(left)} of {LENGTH.size} bytes")
        raise UsageError(f"the input ends inside a message: {len(left) - LENGTH.size:,} of {size_bytes:,} bytes")


def _framed_bytes(left: bytearray, at: int) -> int | None:
    """Returns the length of the message at `at`; None while it is incomplete. Raises UsageError if it is too large."""
    if len(left) - at < LENGTH.size:
        return None
    (size_bytes,) = LENGTH.unpack_from(left, at)
    if size_bytes > MESSAGE_BYTES_MAX:
        raise UsageError(f"a message of {size_bytes:,} bytes is not framed by u32 lengths, or too large to send")
    return int(size_bytes)


def split_key(line: bytes) -> tuple[bytes, bytes]:
    """Splits a line of `pull --keys`. Raises UsageError if the line has no tab."""
    key, tab, data = line.partition(b"\t")
    if not tab:
        raise UsageError(f"no tab ends the key in the line {line[:40].decode(errors='replace')!r}; leave --keys out")
    return key, data


class MessageInput(NamedTuple):
    """A message to push. partition: None if the input line does not name it."""

    data: bytes
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None


def parse_ndjson(line: bytes) -> MessageInput:
    """Parses a line as `--ndjson` and `--json` print it. Ignores its index and time. Raises UsageError."""
    import msgspec

    from stream_service.extensions import Header

    try:
        row = msgspec.json.decode(line, type=_ndjson_type())
        headers = [Header(each.name, _required(each, "value")) for each in row.headers]
        return MessageInput(_required(row, "data"), _bytes_of(row, "key"), headers, row.partition)
    except (ValueError, msgspec.MsgspecError) as error:
        # Broken base64 or UTF-8 raises a ValueError too.
        raise UsageError(f"not a message in JSON: {line[:40].decode(errors='replace')!r}: {error}") from error


@cache
def _ndjson_type() -> Any:
    """Returns the type of an NDJSON line. It is built at first use, so that `--help` does not import msgspec."""
    import msgspec

    def either(name: str) -> list[Any]:
        return [(each, str | None | msgspec.UnsetType, msgspec.UNSET) for each in (name, f"{name}_base64")]

    header = msgspec.defstruct("HeaderLine", [("name", str), *either("value")], forbid_unknown_fields=True)
    count: Any = Annotated[int, msgspec.Meta(ge=0)] | None
    fields: list[Any] = [*either("data"), *either("key"), ("headers", list[header], [])]  # type: ignore[valid-type]
    fields += [(name, count, None) for name in ("partition", "index", "time_us", "missing")]
    return msgspec.defstruct("MessageLine", fields, forbid_unknown_fields=True)


def _required(row: Any, name: str) -> bytes:
    found = _bytes_of(row, name)
    if found is None:
        raise ValueError(f"it has no {name}; write {name}, or {name}_base64 for bytes that are not UTF-8")
    return found


def _bytes_of(row: Any, name: str) -> bytes | None:
    """Returns a field given as text or as base64, None if it is not given. Raises ValueError if both are given."""
    import msgspec

    text, encoded = getattr(row, name), getattr(row, f"{name}_base64")
    if text is not msgspec.UNSET and encoded is not msgspec.UNSET:
        raise ValueError(f"{name} and {name}_base64 both say what the {name} is; leave one out")
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    return text.encode() if isinstance(text, str) else None


class PrintFormat(NamedTuple):
    """How messages are printed. keys, headers, times: the columns before the data. framed: each one follows its length.
    escaped: control characters are escaped, for a terminal."""

    keys: bool = False
    headers: bool = False
    times: bool = False
    as_json: bool = False
    framed: bool = False
    escaped: bool = False


EVERYTHING = PrintFormat(keys=True, headers=True, times=True)


def ndjson_line(message: Any, partition: int, print_format: PrintFormat = EVERYTHING, missing: int = 0) -> bytes:
    """Returns a message as `--ndjson` prints it, by default with everything that is stored of it. A value that is not
    UTF-8 is in base64 under the name `…_base64`. missing: how many messages are missing before it."""
    row: dict[str, Any] = {"partition": partition, "index": message.index}
    if missing:
        row["missing"] = missing
    if print_format.times:
        row["time_us"] = message.time_us
    if print_format.keys:
        row |= _value("key", message.key)
    if print_format.headers:
        row["headers"] = [{"name": header.name, **_value("value", header.value)} for header in message.headers]
    return json.dumps(row | _value("data", message.data)).encode() + b"\n"


def flush() -> None:
    sys.stdout.buffer.flush()


def _value(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _columns(message: Any, print_format: PrintFormat) -> Iterator[bytes]:
    if print_format.times:
        yield time_text(message.time_us).encode()
    if print_format.keys:
        yield message.key or b""
    if print_format.headers:
        yield b",".join(header.name.encode() + b"=" + header.value for header in message.headers)


FailOnHoleOption = Annotated[
    bool,
    "Stop with exit code 1 where messages were deleted before they were read. Without it, a line on stderr "
    "tells which are missing, and --json has their number in the field missing of the next line.",
]


class Printer:
    """Prints messages of a stream, and reports the messages that are missing before them. fail: --fail-on-hole."""

    def __init__(self, stream: str, print_format: PrintFormat, fail: bool) -> None:
        self._stream = stream
        self._format = print_format
        self._fail = fail
        # The index of the first missing message of each hole, by the partition and the index behind the hole.
        self._holes: dict[tuple[int, int], int] = {}

    def note_hole(self, partition: int, first_missing: int, next_there: int) -> None:
        self._holes[partition, next_there] = first_missing

    def write(self, message: RichMessage | StreamMessage, partition: int, *, is_wanted: bool = True) -> None:
        """Writes a wanted message, without a flush. Raises CommandFailed at a hole with --fail-on-hole."""
        first_missing = self._holes.pop((partition, message.index), message.index)
        if first_missing < message.index:
            report_hole(f"{self._stream}/{partition}", first_missing, message.index, self._fail)
        if not is_wanted:
            return
        if self._format.as_json:
            line = ndjson_line(message, partition, self._format, message.index - first_missing)
        elif self._format.framed:
            line = LENGTH.pack(len(message.data)) + message.data
        else:
            cells: Iterable[bytes] = (*_columns(message, self._format), message.data)
            line = b"\t".join(map(printable_bytes, cells) if self._format.escaped else cells) + b"\n"
        sys.stdout.buffer.write(line)


def report_hole(source: str, first_missing: int, next_there: int, fail: bool) -> None:
    """Prints one line about a hole, or raises it as CommandFailed. source: STREAM/PARTITION."""
    what = counted(next_there - first_missing, "message")
    text = f"{what} of {source} missing, {first_missing} to {next_there - 1}: deleted before they were read"
    if fail:
        raise CommandFailed(f"{text}; `stream-node index set` moves a consumer behind them")
    tell(text)


LOOKED_MAX = 10_000
"""The number of messages that a search reads by default. A stream may have no end."""


class Match(NamedTuple):
    """The bytes that a message must have in its key, a header and its data. An empty text fits everything."""

    key: bytes = b""
    header: str = ""
    header_value: bytes = b""
    data: bytes = b""

    @classmethod
    def of(cls, key: str | None, header: str | None, data: str | None) -> Match | None:
        """Returns the condition of a user's three texts; None if all are empty. header: NAME or NAME=TEXT."""
        if not (key or header or data):
            return None
        name, _, value = (header or "").partition("=")
        return cls((key or "").encode(), name, value.encode(), (data or "").encode())

    def fits(self, message: RichMessage) -> bool:
        if self.key not in (message.key or b"") or self.data not in message.data:
            return False
        return not (self.header or self.header_value) or any(
            self.header in ("", each.name) and self.header_value in each.value for each in message.headers
        )

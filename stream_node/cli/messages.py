"""Messages as commands read them from files and print them."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from stream_node.cli.values import UsageError, time_text

if TYPE_CHECKING:
    from stream_service.client import Header, RichMessage, StreamMessage

LENGTH = struct.Struct(">I")
"""In front of each message of a length-framed file: its bytes, as u32, big-endian."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""No frame carries more; a longer length is not one of ours."""


def read_lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines without their line ends."""
    for line in source:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def read_framed(source: BinaryIO) -> Iterator[bytes]:
    """Messages, each behind its length. Raises UsageError where one is cut short or cannot be sent."""
    while head := source.read(LENGTH.size):
        if len(head) < LENGTH.size:
            raise UsageError(f"the input ends inside a length: {len(head)} of {LENGTH.size} bytes")
        (size_bytes,) = LENGTH.unpack(head)
        if size_bytes > MESSAGE_BYTES_MAX:
            raise UsageError(f"a message of {size_bytes:,} bytes is not framed by u32 lengths, or too large to send")
        data = source.read(size_bytes)
        if len(data) < size_bytes:
            raise UsageError(f"the input ends inside a message: {len(data):,} of {size_bytes:,} bytes")
        yield data


def read_inputs(files: list[Path], *, whole: bool, framed: bool) -> Iterator[bytes]:
    """The messages of the files in turn, or of standard input where there are none."""
    read = read_framed if framed else read_lines
    if not files:
        yield from (sys.stdin.buffer.read(),) if whole else read(sys.stdin.buffer)
    for file in files:
        if whole:
            yield file.read_bytes()
            continue
        with file.open("rb") as source:
            yield from read(source)


class Shown(NamedTuple):
    """What is printed of a message beside its data, and how."""

    keys: bool = False
    headers: bool = False
    times: bool = False
    as_json: bool = False
    framed: bool = False

    @property
    def is_rich(self) -> bool:
        """Whether it takes more than a plain pull brings."""
        return self.keys or self.headers or self.times


def write_message(message: StreamMessage | RichMessage, partition: int, shown: Shown) -> None:
    """One message to standard output: its bytes and a line end, behind the columns asked for; its bytes behind their
    length; or JSON with text as it is, and as `…_base64` what is not UTF-8. The caller flushes."""
    if shown.as_json:
        sys.stdout.buffer.write(json.dumps(_row(message, partition, shown)).encode() + b"\n")
    elif shown.framed:
        sys.stdout.buffer.write(LENGTH.pack(len(message.data)) + message.data)
    else:
        sys.stdout.buffer.write(b"\t".join((*_columns(message, shown), message.data)) + b"\n")


def flush() -> None:
    sys.stdout.buffer.flush()


def _row(message: Any, partition: int, shown: Shown) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": partition, "index": message.index}
    if shown.times:
        row["time_us"] = message.time_us
    if shown.keys:
        row |= _value("key", message.key)
    if shown.headers:
        row["headers"] = [{"name": header.name, **_value("value", header.value)} for header in message.headers]
    return row | _value("data", message.data)


def _value(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _columns(message: Any, shown: Shown) -> Iterator[bytes]:
    if shown.times:
        yield time_text(message.time_us).encode()
    if shown.keys:
        yield message.key or b""
    if shown.headers:
        yield b",".join(_pairs(message.headers))


def _pairs(headers: Iterable[Header]) -> Iterator[bytes]:
    for header in headers:
        yield header.name.encode() + b"=" + header.value

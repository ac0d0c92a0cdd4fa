"""Reports missing messages to the user of a reading command, and ends the command with --fail-on-hole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.output import counted, tell
from stream_node.cli.values import CommandFailed

if TYPE_CHECKING:
    from stream_client import RichMessage, StreamMessage

FailOnHoleOption = Annotated[
    bool,
    typer.Option(
        help="Stop with exit code 1 where messages were deleted before they were read. Without it, a line on stderr "
        "tells which are missing, and --json has their number in the field missing of the next line."
    ),
]


class Holes:
    """The missing indexes that a command has met before messages that it has not printed yet."""

    def __init__(self, stream: str, fail: bool) -> None:
        self._stream = stream
        self._fail = fail
        self._before: dict[tuple[int, int], int] = {}

    def found(self, partition: int, first_missing: int, next_there: int) -> None:
        """Records a hole. This is an `on_hole` of the client."""
        self._before[partition, next_there] = first_missing

    def pass_over(self, message: RichMessage | StreamMessage, partition: int) -> int:
        """Returns how many messages are missing before the one that is printed next. Raises CommandFailed with
        --fail-on-hole."""
        first_missing = self._before.pop((partition, message.index), message.index)
        if first_missing < message.index:
            report_hole(f"{self._stream}/{partition}", first_missing, message.index, self._fail)
        return message.index - first_missing


def report_hole(source: str, first_missing: int, next_there: int, fail: bool) -> None:
    """Prints one line about a hole, or raises it as CommandFailed. source: the stream and the partition."""
    what = counted(next_there - first_missing, "message")
    text = f"{what} of {source} missing, {first_missing} to {next_there - 1}: deleted before they were read"
    if fail:
        raise CommandFailed(f"{text}; `stream-node index set` moves a consumer behind them")
    tell(text)

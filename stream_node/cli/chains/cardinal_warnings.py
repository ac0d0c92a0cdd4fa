"""Prints the warnings of `stream-node cardinal consume` on stderr, about dropped messages and abandoned blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stream_node.cli.output import counted, tell

if TYPE_CHECKING:
    from cardinal_streams.application import Application
    from cardinal_streams.machines.consumer_events import Gap, OpenReorg
    from cardinal_streams.machines.reassembly_events import ReassemblyStatistics

# The maximum number of warnings that are printed. Further warnings are only counted.
TOLD_MAX = 20


class Warnings:
    """Prints a warning for each event of a consumer that needs one. It is the `on_event` function of the consumer."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, event: Any) -> None:
        text = _text_of(event)
        if text is None:
            return
        self._count += 1
        if self._count <= TOLD_MAX:
            tell(text)

    def end(
        self,
        application: Application,
        statistics: ReassemblyStatistics,
        unfinished: OpenReorg | None = None,
        gaps: tuple[Gap, ...] = (),
    ) -> None:
        """Prints the final warnings, at the end of the input.
        They are the number of warnings that were not printed, the blocks that the chain lacks, the number of incomplete
        blocks, and the names of the topics if none has a message."""
        if self._count > TOLD_MAX:
            tell(f"{self._count - TOLD_MAX:,} more like these")
        if unfinished is not None:
            tell(f"the reorg to 0x{unfinished.hash.hex()} is not complete, and what came after it is not printed")
        for line in _lines_of(gaps):
            tell(line)
        if statistics.incomplete:
            tell(f"{counted(statistics.incomplete, 'block')} incomplete, and not printed")
        if not statistics.messages:
            tell(f"there is nothing to read on the topics of {application.name!r}: {', '.join(application.topics)}")


def _lines_of(gaps: tuple[Gap, ...]) -> list[str]:
    lines = [
        f"block 0x{gap.hash.hex()} is missing, and {counted(gap.waiting, 'block')} wait for it: {gap.missing}"
        for gap in gaps[:TOLD_MAX]
    ]
    return lines + [f"{len(gaps) - TOLD_MAX:,} more missing blocks"] * (len(gaps) > TOLD_MAX)


def _text_of(event: Any) -> str | None:
    """Returns a warning for an event that means a loss of data, or that an operator must act on; else None."""
    from cardinal_streams.machines.chain_events import Dropped, NeedsReorg
    from cardinal_streams.machines.consumer_events import (
        BadMessage,
        LeftOut,
        PrefixUnmet,
        ReorgRefused,
        ReorgStalled,
        Stalled,
    )
    from cardinal_streams.machines.reassembly_events import Evicted, Refused
    from stream_client import StreamRemade

    match event:
        case BadMessage(source, offset, error):
            return f"no message in {source} at {offset}: {error}"
        case Refused(hash_, outcome, what):
            return f"{what} does not fit block 0x{hash_.hex()} ({outcome.name})"
        case Evicted(hash_, reason, missing):
            return f"block 0x{hash_.hex()} was given up ({reason.name}): {missing}"
        case Dropped(hash_, number, _, reason):
            return f"block {number} 0x{hash_.hex()} was dropped ({reason.name})"
        case NeedsReorg(hash_, number, _):
            return f"block {number} 0x{hash_.hex()} is heavier and forks too deep: it waits for a Reorg message"
        case ReorgRefused(hash_, why):
            return f"the reorg to 0x{hash_.hex()} was refused: {why}"
        case ReorgStalled(hash_, _, idle_s, is_given_up):
            done = "and is given up" if is_given_up else "and nothing else is read meanwhile"
            return f"the reorg to 0x{hash_.hex()} has brought nothing for {idle_s:.0f} s, {done}"
        case Stalled(gaps, age_s):
            return f"nothing new for {age_s:.0f} s; {'; '.join(_lines_of(gaps[:1]))}"
        case LeftOut(hash_, number):
            return f"block {number} 0x{hash_.hex()} is left out: the chain begins after it; --start says where to begin"
        case PrefixUnmet(pattern):
            return f"the tracked pattern {pattern!r} meets no prefix of the application"
        case StreamRemade():
            return f"{event}; everything is read again from the beginning"
        case _:
            return None

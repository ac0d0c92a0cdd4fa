"""Writes a new write-ahead log from the scan of an old log. `stream_storage.sqlite.wal.scan_machine` draws the
format."""

from __future__ import annotations

from collections.abc import Iterator

from stream_storage.sqlite.wal.checksum import checksum
from stream_storage.sqlite.wal.scan_machine import HEADER, MAGIC, PAIR, VERSION, Damage, How, Scan, WalReader


def rebuild(wal: WalReader, found: Scan) -> Iterator[bytes]:
    """Yields a new log in pieces: the frames up to the last commit, with corrected pages and correct checksums. A
    damaged page is written as it was read if its right content is not known, or if a later frame has the same page."""
    yield from rewrite(wal, found.end, {each.frame: each for each in found.damaged})


def rewrite(wal: WalReader, end: int, corrected: dict[int, Damage]) -> Iterator[bytes]:
    """Yields a new log in pieces: a header and the first `end` frames, with correct checksums and corrected pages. A
    frame with an unrecovered page and an impossible page number is omitted."""
    last = corrected.get(end)
    pages = wal.head(end).commit if last is None else last.commit
    magic = MAGIC | wal.big_endian
    salts = PAIR.unpack(wal.salts)
    header = HEADER.pack(magic, VERSION, wal.page_bytes, wal.sequence, *salts)
    sums = checksum(header, (0, 0), wal.big_endian)
    yield header + PAIR.pack(*sums)
    for number in range(1, end + 1):
        head, damage = wal.head(number), corrected.get(number)
        if damage is not None and damage.how in (How.LOST, How.DOUBT) and not 0 < damage.page <= pages:
            continue
        page = head.page if damage is None else damage.page
        commit = head.commit if damage is None else damage.commit
        content = wal.page(number) if damage is None or damage.content is None else damage.content
        start = PAIR.pack(page, commit)
        sums = checksum(start + content, sums, wal.big_endian)
        yield start + wal.salts + PAIR.pack(*sums) + content

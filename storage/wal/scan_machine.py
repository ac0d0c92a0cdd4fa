"""Reads the format of SQLite's write-ahead log, and judges what stands behind a place that cannot be read.

This module gets bytes; `storage.wal.check` opens and changes the files. SQLite stops reading a log at the first frame
whose checksum does not fit, and says nothing of the frames behind it. A power cut leaves such a frame at the end of the
log, where nothing is lost; damage leaves one in the middle, and every commit behind it would be lost in silence.

    offset  size   the log: one header, then frames of 24 bytes and one page each; numbers are big-endian
         0     4   magic: 0x377f0682, or 0x377f0683 where checksums are taken over big-endian words
         4     4   version: 3007000
         8     4   page size
        12     4   sequence: how often the log has begun anew
        16     8   two salts, others each time the log begins anew
        24     8   checksum of the 24 bytes before

    offset  size   a frame
         0     4   number of the page, from 1
         4     4   pages of the database after the commit that this frame ends; 0 within a transaction
         8     8   the header's salts; a frame with others is left over from before the log began anew
        16     8   checksum of bytes 0 to 8 and of the page, begun with the checksum of the frame before, or with the
                   header's
        24         the page

The checksum is that of `storage.wal.checksum`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from storage.wal.checksum import Sums, checksum, correct_word

Read: TypeAlias = Callable[[int, int], bytes]
"""The bytes of the log at an offset, of a size; fewer at its end."""
FindPage: TypeAlias = Callable[[int], bytes | None]
"""A page of the database file by its number; None where the file has no such page."""

HEADER_BYTES: Final = 32
FRAME_HEAD_BYTES: Final = 24
MAGIC: Final = 0x377F0682
VERSION: Final = 3007000
PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
SPILL_FRAMES_MIN: Final = 1_000
"""A transaction of so many pages may have outgrown the page cache (16 MiB, some 2,000 pages). SQLite then writes pages
to the log early, may write over them, and mends the checksums behind them only at the end: a kill in between leaves
frames that do not fit, before a commit mark that does."""
CORRECTED_MAX: Final = 64
"""Frames for which a wrong word is looked for: each takes some milliseconds."""
HEADER: Final = struct.Struct(">IIIIII")
PAIR: Final = struct.Struct(">II")


class Frame(NamedTuple):
    """The head of a frame. commit: pages of the database after it, 0 where it ends no transaction."""

    page: int
    commit: int
    salts: bytes
    sums: Sums


class Damage(NamedTuple):
    """A frame that does not fit. how: why its page is known all the same, or LOST. content: its page where it is known;
    page, commit: as they were written."""

    frame: int
    how: How
    page: int
    commit: int
    content: bytes | None


class How(Enum):
    """Why the page of a frame is known. SALT, CHECKSUM: only that part of its head is wrong. BYTE, WORD: so much of it
    is wrong, and the checksum says what stood there. LATER: the page was written again behind it. FILE: the database
    file has the page, which the checksum proves. It is not known: DOUBT, one byte is wrong, but it may be one of
    several; LOST, for any other reason."""

    SALT = "salt"
    CHECKSUM = "checksum"
    BYTE = "byte"
    WORD = "word"
    DOUBT = "one byte, in one of several places"
    LATER = "written again later"
    FILE = "in the database file"
    LOST = "lost"


class Verdict(Enum):
    """SOUND: all that was committed can be read. TORN: behind the last commit are frames without one, as a kill or a
    power cut leaves them. COMPLETED: the last transaction has frames that do not fit, and all of them are known.
    CUT: the last transaction has frames that are not known; a power cut explains it, so it was never confirmed.
    DAMAGED: what was confirmed cannot be read."""

    SOUND = "sound"
    TORN = "torn"
    COMPLETED = "completed"
    CUT = "cut"
    DAMAGED = "damaged"


class Scan(NamedTuple):
    """What a log holds. frames: in the file; good: up to the last commit that SQLite reads; bad: the first frame that
    does not fit although it belongs to the log (0: none); commits: frames behind `good` that end a transaction; end:
    the last of them, 0 where there is none; damaged: the frames from `bad` to `end` that do not fit."""

    header_valid: bool
    frames: int
    good: int
    bad: int
    commits: tuple[int, ...]
    end: int
    damaged: tuple[Damage, ...]

    @property
    def known(self) -> int:
        """The last frame that ends a transaction before any frame is lost; 0 where there is none."""
        first_lost = self.lost[0].frame if self.lost else self.end + 1
        return max((number for number in (self.good, *self.commits) if number < first_lost), default=0)

    @property
    def lost(self) -> tuple[Damage, ...]:
        return tuple(each for each in self.damaged if each.how in (How.LOST, How.DOUBT))


class WalReader:
    """One log. Nothing of it is kept in memory but the heads of its frames.

    Invariant: `seed` is what the first frame's checksum begins with, as far as the header tells.
    """

    def __init__(self, read: Read, size_bytes: int, page_bytes: int) -> None:
        """page_bytes: of the database file, where the header does not tell."""
        self._read = read
        header = read(0, HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
        magic, version, page_size, self.sequence, *_ = HEADER.unpack_from(header)
        self.big_endian = bool(magic & 1)
        self.header_salts = header[16:24]
        self.seed: Sums = PAIR.unpack_from(header, 24)
        self.header_valid = (
            magic in (MAGIC, MAGIC | 1)
            and version == VERSION
            and page_size in PAGE_SIZES
            and checksum(header[:24], (0, 0), self.big_endian) == self.seed
        )
        self.page_bytes = page_size if self.header_valid else page_bytes
        self.frame_bytes = FRAME_HEAD_BYTES + self.page_bytes
        self.frames = max(0, size_bytes - HEADER_BYTES) // self.frame_bytes
        self.heads = [self._head(number) for number in range(1, self.frames + 1)]
        self.salts = self.header_salts
        if not self.header_valid:
            self._guess_header(header)

    def head(self, number: int) -> Frame:
        return self.heads[number - 1]

    def page(self, number: int) -> bytes:
        return self._read(self.offset(number) + FRAME_HEAD_BYTES, self.page_bytes)

    def offset(self, number: int) -> int:
        """Where a frame begins, or ends the one before."""
        return HEADER_BYTES + (number - 1) * self.frame_bytes

    def sums(self, number: int, seed: Sums) -> Sums:
        """The checksum that a frame should have, behind one with the checksum `seed`."""
        head = self.head(number)
        return checksum(PAIR.pack(head.page, head.commit) + self.page(number), seed, self.big_endian)

    def links(self, number: int, seed: Sums) -> bool:
        head = self.head(number)
        return head.page > 0 and self.sums(number, seed) == head.sums

    def _head(self, number: int) -> Frame:
        raw = self._read(self.offset(number), FRAME_HEAD_BYTES)
        page, commit = PAIR.unpack_from(raw)
        return Frame(page, commit, raw[8:16], PAIR.unpack_from(raw, 16))

    def _guess_header(self, header: bytes) -> None:
        """The header is damaged: its salts are those of the first frames, and its checksum is one of two."""
        first = [frame.salts for frame in self.heads[:3]]
        if not first:
            return
        self.salts = max(first, key=first.count)
        stored = self.seed
        for big_endian in (False, True):
            self.big_endian = big_endian
            for seed in (stored, checksum(header[:24], (0, 0), big_endian)):
                self.seed = seed
                if self.links(1, seed):
                    return
        for big_endian in (False, True):
            self.big_endian = big_endian
            if self.frames > 1 and self.links(2, self.head(1).sums):
                return


def scan(wal: WalReader, find_page: FindPage) -> Scan:
    """Read the whole log: the frames that follow each other, and all that belongs to it behind the first that does not
    fit. A frame behind it is checked against what is stored in the one before, so that it can be whole by itself."""
    belong = [number for number, frame in enumerate(wal.heads, 1) if frame.salts == wal.salts]
    last = belong[-1] if belong else 0
    seed, good, bad = wal.seed, 0, 0 if wal.header_valid else 1
    whole: dict[int, Frame] = {}
    doubtful: dict[int, Sums | None] = {}
    found: dict[int, Damage] = {}
    # One frame more: the salts of the last one may be what is wrong.
    for number in range(1, min(last + 1, wal.frames) + 1):
        head = wal.head(number)
        sums = wal.sums(number, seed)
        # Frames with other salts may be left over from the log before this one, where a power cut took what was to
        # stand over them. They fit behind each other; behind a whole frame of this log fits only one whose salts alone
        # are wrong.
        proven = head.salts == wal.salts or number == 1 or number - 1 in whole
        if sums == head.sums and head.page > 0 and proven:
            whole[number] = head
            if head.salts != wal.salts:
                found[number] = Damage(number, How.SALT, head.page, head.commit, wal.page(number))
            seed = sums
        elif number > last:
            break
        elif number < wal.frames and head.page > 0 and proven and wal.links(number + 1, sums):
            # The next frame goes on from what this one's checksum should be.
            whole[number] = head
            found[number] = Damage(number, How.CHECKSUM, head.page, head.commit, wal.page(number))
            seed = sums
        else:
            doubtful[number] = seed if proven else None
            seed = head.sums
        # The first frame that does not fit is where SQLite stops; up to there every commit mark counts.
        if number not in whole or number in found:
            bad = bad or number
        elif not bad and head.commit:
            good = number
    # A wrong word is looked for in frames of this log alone: in another's it could only be found by accident.
    for number, seed in [(number, seed) for number, seed in doubtful.items() if seed is not None][:CORRECTED_MAX]:
        damage = _correct(wal, number, seed)
        if damage is not None:
            found[number] = damage
    return _finish(wal, find_page, good, bad, whole, doubtful, found)


def _finish(
    wal: WalReader,
    find_page: FindPage,
    good: int,
    bad: int,
    whole: dict[int, Frame],
    doubtful: dict[int, Sums | None],
    found: dict[int, Damage],
) -> Scan:
    """Where the transactions behind the first bad frame end, and what is known of each bad frame before that.

    whole: the frames that fit. doubtful: those that do not, each with the checksum that stands before it, or None where
    the frame may be another log's. found: those of which one part alone is wrong.
    """
    marks = {number for number, frame in whole.items() if frame.commit}
    marks |= {number for number, damage in found.items() if damage.commit}
    commits = tuple(sorted(number for number in marks if bad and number > good))
    end = commits[-1] if commits else 0
    last_written = {frame.page: number for number, frame in sorted(whole.items()) if number <= end}
    damaged = []
    for number in sorted({*found, *doubtful}):
        if number > end:
            break
        head = wal.head(number)
        damage = found.get(number, Damage(number, How.LOST, head.page, head.commit, None))
        if damage.how in (How.LOST, How.DOUBT):
            seed, content = doubtful[number], find_page(head.page)
            if last_written.get(head.page, 0) > number:
                damage = damage._replace(how=How.LATER)
            elif seed is not None and content is not None and len(content) == wal.page_bytes:
                data = PAIR.pack(head.page, head.commit) + content
                if checksum(data, seed, wal.big_endian) == head.sums:
                    damage = damage._replace(how=How.FILE, content=content)
        damaged.append(damage)
    return Scan(wal.header_valid, wal.frames, good, bad, commits, end, tuple(damaged))


def _correct(wal: WalReader, number: int, seed: Sums) -> Damage | None:
    """A frame with one word put right; None where that does not do."""
    head = wal.head(number)
    data = PAIR.pack(head.page, head.commit) + wal.page(number)
    sums = checksum(data, seed, wal.big_endian)
    last = number == wal.frames or wal.head(number + 1).salts != wal.salts
    possible = correct_word(data, sums, head.sums, wal.big_endian)
    # Where nothing behind it tells, one of the two sums may be what is wrong.
    if last and head.page > 0 and (sums[0] == head.sums[0]) != (sums[1] == head.sums[1]):
        how = How.DOUBT if possible else How.CHECKSUM
        return Damage(number, how, head.page, head.commit, None if possible else data[8:])
    if len(possible) == 1:
        page, commit = PAIR.unpack_from(possible[0])
        how = How.BYTE if _bytes_changed(possible[0], data) == 1 else How.WORD
        return Damage(number, how, page, commit, possible[0][8:]) if page > 0 else None
    if any(_bytes_changed(each, data) == 1 for each in possible):
        return Damage(number, How.DOUBT, head.page, head.commit, None)
    return None


def _bytes_changed(one: bytes, other: bytes) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def judge(found: Scan, *, rebooted: bool, in_file: bool) -> Verdict:
    """What a scan means: whether a power cut or a kill explains the frames that do not fit, or damage alone does.

    - SQLite syncs every commit before the next transaction writes to the log. So a power cut takes frames of the last
      transaction alone: two commits behind a bad frame are damage.
    - A killed process leaves every write that it has finished. So unless the machine was started anew since
      (`rebooted`), a whole frame behind a bad one is damage as well; a transaction that outgrew the page cache is
      excepted, since SQLite writes such a transaction to the log in several passes.
    - Without a restart of the machine, a last frame with one wrong byte is damage too: a kill may leave an older page
      in the place of the frame, but hardly a page that differs in one byte.
    - Everything else a power cut or a kill explains. The last transaction is completed where every byte of it is known.
      Otherwise it was never confirmed, and is cut off.

    in_file: the database file has all pages of the log. SQLite syncs the log's header before it writes a frame, so a
    bad header before commits is damage, unless the log was about to begin anew; then all of it is in the file.
    """
    if not found.bad:
        return Verdict.SOUND
    if not found.commits:
        return Verdict.TORN
    if not found.header_valid:
        return Verdict.TORN if in_file else Verdict.DAMAGED
    # What was written in several passes can have a bad frame before its commit mark after a mere kill.
    spilled = found.end - found.good >= SPILL_FRAMES_MIN
    certain = found.end > found.bad or any(each.how is How.DOUBT for each in found.damaged)
    if len(found.commits) > 1 or (not rebooted and not spilled and certain):
        return Verdict.DAMAGED
    exact = all(each.how in (How.SALT, How.CHECKSUM, How.BYTE, How.FILE) for each in found.damaged)
    return Verdict.COMPLETED if exact and not spilled else Verdict.CUT


def is_in_file(wal: WalReader, found: Scan, find_page: FindPage) -> bool:
    """Whether the database file has every page as the log has it at its end."""
    if not found.end:
        return True
    contents = {each.frame: each for each in found.damaged}
    last = {contents.get(n, wal.head(n)).page: n for n in range(1, found.end + 1)}
    size = contents.get(found.end, wal.head(found.end)).commit
    for page, number in last.items():
        content = contents[number].content if number in contents else wal.page(number)
        if page <= size and (content is None or find_page(page) != content):
            return False
    return True

"""Scans a write-ahead log of SQLite, and judges whether a frame with a wrong checksum is damage. It opens no files.

SQLite stops reading a log at the first frame with a wrong checksum, and ignores all later frames without an error.
After a power cut, such a frame is at the end of the log, and no confirmed commit follows. After damage, it is in the
middle, and every later commit would be lost without notice. So the whole log is read.

    offset  size   the log: one header, then frames of 24 bytes and one page each; numbers are big-endian
         0     4   magic: 0x377f0682, or 0x377f0683 if the checksums are computed over big-endian words
         4     4   version: 3007000
         8     4   page size
        12     4   sequence: how often SQLite has restarted the log from its beginning
        16     8   two salts, which are new at each restart of the log
        24     8   checksum of bytes 0 to 23

    offset  size   a frame
         0     4   number of the page, from 1
         4     4   number of pages of the database after the commit, in the last frame of a transaction; else 0
         8     8   the salts of the header; a frame with other salts is older than the last restart of the log
        16     8   checksum of bytes 0 to 7 and of the page, begun with the checksum of the frame before; the first
                   frame begins with the checksum of the header
        24         the page"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

Sums: TypeAlias = tuple[int, int]

LANES_MIN: Final = 64
"""The smallest number of word pairs that `_sum_lanes` sums at once. Fewer pairs are summed one by one."""
_MASK: Final = 0xFFFFFFFF
_LANE: Final = b"\xff\xff\xff\xff\0\0\0\0"


def checksum(data: bytes, seed: Sums, big_endian: bool) -> Sums:
    """Returns the two sums of `data`, a multiple of 8 bytes. seed: the sums over earlier data.

    The sums are over pairs of 32-bit words, modulo 2**32: s0 += x0 + s1, then s1 += x1 + s0. A pair (x0, x1) turns the
    sums (s0, s1) into A * (s0, s1) + (x0, x0 + x1), where A is the matrix (1 1, 1 2). So the checksum is linear: many
    pairs can be summed at once, and a wrong word changes each sum by a multiple of the word's weight, a number that
    depends only on its location."""
    pairs = len(data) // 8
    at_once = 1 << (pairs.bit_length() - 1) if pairs >= LANES_MIN else 0
    first = pairs - at_once
    words = iter(struct.unpack_from(f"{'>' if big_endian else '<'}{2 * first}I", data))
    s0, s1 = seed
    for x0, x1 in zip(words, words, strict=True):
        s0 = (s0 + x0 + s1) & _MASK
        s1 = (s1 + x1 + s0) & _MASK
    return _sum_lanes(data[8 * first :], (s0, s1), big_endian) if at_once else (s0, s1)


def _sum_lanes(data: bytes, seed: Sums, big_endian: bool) -> Sums:
    """Returns the two sums over a power of two of word pairs, four times as fast as pair by pair: two large integers
    contain s0 and s1 of each pair, in lanes of 64 bits, and each step combines the two halves of the lanes."""
    plan = _plan(len(data) // 8)
    if big_endian:
        words = array("I", data)
        words.byteswap()
        data = words.tobytes()
    pairs = int.from_bytes(data, "little")
    u = pairs & plan.lanes
    v = u + (pairs >> 32 & plan.lanes)
    s0, s1 = _step(seed)
    u, v = (u + s0) & plan.lanes, (v + s1) & plan.lanes
    for bits, low, lanes, (a, b, c, d) in plan.halvings:
        # Each product fits into its lane. It is cut to 32 bits before the addition, so that no carry reaches the next
        # lane.
        first_u, first_v = u & low, v & low
        u, v = (
            ((first_u * a & lanes) + (first_v * b & lanes) + (u >> bits)) & lanes,
            ((first_u * c & lanes) + (first_v * d & lanes) + (v >> bits)) & lanes,
        )
    return u, v


class _Plan(NamedTuple):
    """The constants of `_sum_lanes` for one number of pairs.

    lanes: a mask of the lower 32 bits of all lanes.
    halvings: for each step, about the first half of the lanes: their number of bits, a mask of all their bits, a mask
        of their lower 32 bits, and the matrix A to the power of the number of these lanes."""

    lanes: int
    halvings: tuple[tuple[int, int, int, tuple[int, int, int, int]], ...]


@lru_cache(maxsize=4)
def _plan(pairs: int) -> _Plan:
    halvings = []
    half, (a, b, c, d) = 1, (1, 1, 1, 2)
    while half < pairs:
        halvings.append((64 * half, (1 << 64 * half) - 1, int.from_bytes(_LANE * half, "little"), (a, b, c, d)))
        half *= 2
        a, b, c, d = (value & _MASK for value in (a * a + b * c, a * b + b * d, c * a + d * c, c * b + d * d))
    assert half == pairs, "a page has a power of two of bytes"
    return _Plan(int.from_bytes(_LANE * pairs, "little"), tuple(reversed(halvings)))


def correct_word(data: bytes, sums: Sums, wanted: Sums, big_endian: bool) -> list[bytes]:
    """Returns all versions of `data`, which has the checksum `sums`, with one changed 32-bit word and the checksum
    `wanted`.

    Usually there is one or none. If the upper ten bits of a word are wrong, changes of different words can give the
    same checksum. A changed word fits by accident once in a million, and a single changed byte once in 2**43."""
    need = ((wanted[0] - sums[0]) & _MASK, (wanted[1] - sums[1]) & _MASK)
    order = ">I" if big_endian else "<I"
    found = []
    for place, (a, b, inverse, by_first) in enumerate(_weights(len(data) // 4)):
        step = need[0] * inverse if by_first else need[1] * inverse
        if (step * a - need[0]) & _MASK == 0 == (step * b - need[1]) & _MASK:
            (word,) = struct.unpack_from(order, data, 4 * place)
            changed = struct.pack(order, (word + step) & _MASK)
            found.append(data[: 4 * place] + changed + data[4 * place + 4 :])
    return found


@lru_cache(maxsize=2)
def _weights(words: int) -> tuple[tuple[int, int, int, bool], ...]:
    """Returns for each 32-bit word its two weights (by how much each sum grows when the word grows by one), the inverse
    of an odd weight, and whether this is the first weight. Two neighbouring Fibonacci numbers are never both even."""
    first, second = (1, 1), (0, 1)
    backwards: list[Sums] = []
    for _ in range(words // 2):
        # The second word of a pair is added to s1 only, the first word to both sums. Each later pair transforms the
        # weights once more.
        backwards += (second, first)
        first, second = _step(first), _step(second)
    return tuple((a, b, pow(a if a & 1 else b, -1, 1 << 32), bool(a & 1)) for a, b in reversed(backwards))


def _step(sums: Sums) -> Sums:
    s0 = (sums[0] + sums[1]) & _MASK
    return s0, (sums[1] + s0) & _MASK


Read: TypeAlias = Callable[[int, int], bytes]
"""Reads bytes of the log, by offset and size. It returns fewer bytes at the end of the log."""
FindPage: TypeAlias = Callable[[int], bytes | None]
"""Returns a page of the database file by its number, or None if the file has no such page."""

HEADER_BYTES: Final = 32
FRAME_HEAD_BYTES: Final = 24
MAGIC: Final = 0x377F0682
VERSION: Final = 3007000
PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
SPILL_FRAMES_MIN: Final = 1_000
"""A transaction with this many pages was perhaps larger than the page cache (16 MiB, some 2,000 pages). SQLite then
writes pages early, can overwrite them, and corrects later checksums only at the end. A kill before that can leave wrong
frames before a correct commit frame."""
CORRECTED_MAX: Final = 64
"""The most frames in which a scan searches for a wrong word, which takes several milliseconds for each."""
HEADER: Final = struct.Struct(">IIIIII")
PAIR: Final = struct.Struct(">II")


class Frame(NamedTuple):
    """The head of a frame of the write-ahead log."""

    page: int
    commit: int  # the number of pages of the database after the transaction that this frame ends; 0 if it ends none
    salts: bytes
    sums: Sums  # the checksum


class Damage(NamedTuple):
    """A damaged frame, whose checksum or salts are wrong."""

    frame: int  # the number of the frame
    how: How
    page: int  # the page number: like `commit`, it is from the head of the frame, corrected if possible
    commit: int
    content: bytes | None  # the page; None if it is not known


class How(Enum):
    """How the content of a damaged frame's page was recovered, if at all."""

    SALT = "salt"  # only the salts in the head of the frame are wrong
    CHECKSUM = "checksum"  # only the checksum in the head of the frame is wrong
    BYTE = "byte"  # one byte is wrong, and the checksum shows the right value
    WORD = "word"  # one word is wrong, and the checksum shows the right value
    DOUBT = "one byte, in one of several places"  # not recovered: the checksum does not show which byte
    LATER = "written again later"  # a later frame has the same page, so the damaged page is not needed
    FILE = "in the database file"  # the database file has the page, as the checksum proves
    LOST = "lost"  # not recovered for another reason


class WalState(Enum):
    """The state of a write-ahead log, which decides its treatment."""

    SOUND = "sound"  # every commit can be read
    TORN = "torn"  # after the last commit stand frames of an unfinished transaction
    COMPLETED = "completed"  # the last transaction has damaged frames, but the content of all its pages is certain
    CUT = "cut"  # the last transaction is damaged and uncertain, and was never confirmed
    DAMAGED = "damaged"  # a confirmed transaction cannot be read


class Scan(NamedTuple):
    """The result of scanning a write-ahead log. Frames are numbered from 1; 0 means that there is no such frame."""

    header_valid: bool  # whether the header of the log is undamaged
    frames: int  # how many frames the file has
    good: int  # the number of the last commit frame that SQLite reads
    bad: int  # the number of the first damaged frame
    commits: tuple[int, ...]  # the numbers of the commit frames after `good`
    end: int  # the last of `commits`
    damaged: tuple[Damage, ...]  # the damaged frames from `bad` to `end`

    @property
    def known(self) -> int:
        """The number of the last commit frame before the first frame that is lost, if any; 0 if there is none."""
        first_lost = self.lost[0].frame if self.lost else self.end + 1
        return max((number for number in (self.good, *self.commits) if number < first_lost), default=0)

    @property
    def lost(self) -> tuple[Damage, ...]:
        return tuple(each for each in self.damaged if each.how in (How.LOST, How.DOUBT))


class WalReader:
    """Reads a write-ahead log frame by frame. It keeps only the heads of the frames in memory. Invariant: `seed` is the
    value with which the checksum of the first frame begins; a guess if the header is damaged."""

    def __init__(self, read: Read, size_bytes: int, page_bytes: int) -> None:
        """Reads the header and the heads of all frames. page_bytes: for a log whose header is damaged."""
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
        return HEADER_BYTES + (number - 1) * self.frame_bytes

    def sums(self, number: int, seed: Sums) -> Sums:
        """Returns the checksum that a frame should have if the frame before has the checksum `seed`."""
        head = self.head(number)
        return checksum(PAIR.pack(head.page, head.commit) + self.page(number), seed, self.big_endian)

    def links(self, number: int, seed: Sums) -> bool:
        """Returns whether the checksum of a frame is correct if the frame before has the checksum `seed`."""
        head = self.head(number)
        return head.page > 0 and self.sums(number, seed) == head.sums

    def _head(self, number: int) -> Frame:
        raw = self._read(self.offset(number), FRAME_HEAD_BYTES)
        page, commit = PAIR.unpack_from(raw)
        return Frame(page, commit, raw[8:16], PAIR.unpack_from(raw, 16))

    def _guess_header(self, header: bytes) -> None:
        """Finds the salts of a damaged header, then the byte order with which a frame has a correct checksum."""
        # Take the salts that most of the first three frames have, since one of these frames may be damaged.
        first = [frame.salts for frame in self.heads[:3]]
        if not first:
            return
        self.salts = max(first, key=first.count)
        stored = self.seed
        # Either the checksum in the header is right and another field is damaged, or only the checksum is damaged. In
        # the second case the right checksum is computed from the other fields.
        for big_endian in (False, True):
            self.big_endian = big_endian
            for seed in (stored, checksum(header[:24], (0, 0), big_endian)):
                self.seed = seed
                if self.links(1, seed):
                    return
        # If neither fits, use the second frame: its checksum begins with the checksum of the first frame and needs no
        # header.
        for big_endian in (False, True):
            self.big_endian = big_endian
            if self.frames > 1 and self.links(2, self.head(1).sums):
                return


def scan(wal: WalReader, find_page: FindPage) -> Scan:
    """Reads the whole log, and returns the undamaged commits and the damaged frames. The frame after a damaged one is
    checked with the checksum that is stored in the damaged one, so an undamaged frame is recognized even there."""
    # `whole` has the frames with a correct checksum. `doubtful` has the frames with a wrong checksum, each with the
    # checksum of the frame before. `found` has the damaged frames whose damage is explained.
    belong = [number for number, frame in enumerate(wal.heads, 1) if frame.salts == wal.salts]
    last = belong[-1] if belong else 0
    seed, good, bad = wal.seed, 0, 0 if wal.header_valid else 1
    whole: dict[int, Frame] = {}
    doubtful: dict[int, Sums | None] = {}
    found: dict[int, Damage] = {}
    # Also read one frame after the last frame with the salts of the log: in that frame, only the salts may be wrong.
    for number in range(1, min(last + 1, wal.frames) + 1):
        head = wal.head(number)
        sums = wal.sums(number, seed)
        # A frame with other salts may be older than the last restart of the log, and its checksum may fit to another
        # old frame before it. But if its checksum fits to an undamaged frame of this log, it belongs to this log, and
        # only its salts are wrong.
        proven = head.salts == wal.salts or number == 1 or number - 1 in whole
        if sums == head.sums and head.page > 0 and proven:
            whole[number] = head
            if head.salts != wal.salts:
                found[number] = Damage(number, How.SALT, head.page, head.commit, wal.page(number))
            seed = sums
        elif number > last:
            break
        elif number < wal.frames and head.page > 0 and proven and wal.links(number + 1, sums):
            # The checksum of the next frame fits to the checksum that this frame should have, so only the stored
            # checksum of this frame is wrong.
            whole[number] = head
            found[number] = Damage(number, How.CHECKSUM, head.page, head.commit, wal.page(number))
            seed = sums
        else:
            doubtful[number] = seed if proven else None
            seed = head.sums
        # SQLite stops at the first damaged frame, so only the commits before that frame are good.
        if number not in whole or number in found:
            bad = bad or number
        elif not bad and head.commit:
            good = number
    # Search for one wrong word in the frames that certainly belong to this log. In other frames, a correction could fit
    # by accident.
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
    """Completes a scan: finds the commits after the first damaged frame, and recovers the pages up to the last of them.
    doubtful: the frames with a wrong checksum, each with the checksum of the frame before, or None if the frame can be
    older than the last restart of the log."""
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
            # Two more places may have the page of a damaged frame: a later frame, and the database file.
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
    """Returns the damage of a frame if one wrong word, in the data or the stored checksum, explains it. seed: the
    checksum of the frame before."""
    head = wal.head(number)
    data = PAIR.pack(head.page, head.commit) + wal.page(number)
    sums = checksum(data, seed, wal.big_endian)
    # No frame of this log follows, so nothing confirms the stored checksum.
    last = number == wal.frames or wal.head(number + 1).salts != wal.salts
    possible = correct_word(data, sums, head.sums, wal.big_endian)
    # If only one of the two sums differs, the stored sum may be wrong, and the page may be right.
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


def judge(found: Scan, *, rebooted: bool, in_file: bool) -> WalState:
    """Returns the verdict on a scanned log: whether a power cut or a kill explains its bad frames, or only damage.

    rebooted: whether the machine could have restarted since the log was written.
    in_file: whether the database file has all pages of the log."""
    if not found.bad:
        return WalState.SOUND
    if not found.commits:
        return WalState.TORN
    # SQLite syncs the log's header before it writes a frame. So a bad header before commits means damage, unless the
    # database file has all pages of the log: then SQLite was perhaps restarting the log from its beginning.
    if not found.header_valid:
        return WalState.TORN if in_file else WalState.DAMAGED
    # After a kill, a transaction that was written in several passes can have a bad frame before its commit frame.
    spilled = found.end - found.good >= SPILL_FRAMES_MIN
    # All finished writes of a killed process survive until the machine restarts. So without a restart, an undamaged
    # frame after a bad one means damage, and so does one wrong byte at an unknown location: a kill can leave an older
    # page there, but such a page almost never differs in only one byte.
    certain = found.end > found.bad or any(each.how is How.DOUBT for each in found.damaged)
    # SQLite syncs every commit before the next transaction writes to the log. So a power cut loses frames of the last
    # transaction only, and two commits after a bad frame mean damage.
    if len(found.commits) > 1 or (not rebooted and not spilled and certain):
        return WalState.DAMAGED
    # A power cut or a kill explains everything else. If every byte of the last transaction is known, it can be
    # completed. Otherwise it was never confirmed, and can be cut off.
    exact = all(each.how in (How.SALT, How.CHECKSUM, How.BYTE, How.FILE) for each in found.damaged)
    return WalState.COMPLETED if exact and not spilled else WalState.CUT


def is_in_file(wal: WalReader, found: Scan, find_page: FindPage) -> bool:
    """Returns whether the database file has all pages of the log, each with its content in the last frame."""
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

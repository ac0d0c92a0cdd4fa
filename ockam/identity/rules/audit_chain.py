"""AuditChain: the seals of the lines of an audit log, which show a changed, lost or moved line. It writes no file.

Each line ends with the field `seal`: the name of its chain, its number in the chain, the checksum of the line before it
in the chain, and its own checksum, which covers all bytes before it. The mark `^` says that the line is the first one
of its chain in its file. Each process has a chain of its own, because several write one file. A chain goes on in the
next file after a rotation, and after a restart.

A seal shows damage. It does not protect against an attacker, who can compute it."""

from __future__ import annotations

import gzip
import mmap
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from ockam.identity.rules.audit_lines import Entry

_SEAL: Final = re.compile(rb',"seal":"(\w+):(\d{1,20}):(\^?)([0-9a-f]{8}):([0-9a-f]{8})"\}\Z')
_WHOLE: Final = re.compile(rb',"seal":"\w+:\d+:\^?[0-9a-f]{8}:.{9}')
"""A seal that lacks at most its last byte, the brace, whatever the checksum is."""
_BEGIN: Final = b'{"time":'
_PARTS: Final = re.compile(b'(?={"time":)')
_CHECKSUM_BYTES: Final = len(b'1a2b3c4d"}')
_ROTATED: Final = r"([.-]\d+)*(\.gz)?"
PROBLEMS_MAX = 20


class Seal(NamedTuple):
    """The seal of one line.

    number: the line's number in its chain, from 1. is_first: whether the line is the first of its chain in its file.
    before: the checksum of the line before it in the chain; 0: there is none."""

    chain: bytes
    number: int
    is_first: bool
    before: int
    checksum: int


class AuditContent(msgspec.Struct):
    """The content of the files of an audit log.

    problems: the first PROBLEMS_MAX texts about changed, missing or moved lines. problem_count: the number of all.
    sealed: the number of lines whose seal is right.
    unsealed: the number of lines of an older version, without a seal.
    cut: the number of lines that a crash or a full disk has cut; their chain went on without them."""

    problems: list[str] = []
    problem_count: int = 0
    sealed: int = 0
    unsealed: int = 0
    cut: int = 0


class _Unsealed(Entry, frozen=True, forbid_unknown_fields=True):
    time: str = ""


class AuditChain:
    """The chain of one process. name: letters and digits, different for each process that writes to the file."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._number = self._checksum = 0
        self._is_first = True

    def open(self, file: Path) -> None:
        """Begins to write to a file. A new process goes on after the last line of its chain there. Raises OSError."""
        end = _find_end(file, self._name)
        self._is_first = end is None
        if end is not None and not self._number:
            self._number, self._checksum = end.number, end.checksum

    def sealed(self, line: bytes) -> bytes:
        mark = b"^" if self._is_first else b""
        head = b'%s,"seal":"%s:%d:%s%08x:' % (line[:-1], self._name, self._number + 1, mark, self._checksum)
        return b'%s%08x"}' % (head, crc32(head))

    def note_written(self, line: bytes) -> None:
        """Makes a line of `sealed` the last line of the chain. Call it when the line is in the file."""
        self._number, self._is_first, self._checksum = self._number + 1, False, crc32(line[:-_CHECKSUM_BYTES])


def audit_files(file: Path) -> list[Path]:
    """Returns the existing files of an audit log, also those that logrotate has renamed, the oldest lines first."""
    if not file.parent.is_dir():
        return []
    name = re.compile(re.escape(file.name) + _ROTATED)
    found = [each for each in file.parent.iterdir() if name.fullmatch(each.name) and each.is_file()]
    # Each line begins with its time.
    return sorted(found, key=lambda each: next(_lines(each), b""))


def examine_audit(files: Iterable[Path]) -> AuditContent:
    """Checks the seals of all lines. files: as `audit_files` returns them. Raises OSError."""
    examiner = _Examiner()
    for file in files:
        examiner.take_file(file)
    return examiner


class _Examiner(AuditContent):
    _ends: dict[bytes, Seal] = {}
    # The number of changed lines whose place in a chain is not known yet.
    _changed: int = 0

    def take_file(self, file: Path) -> None:
        chains: set[bytes] = set()
        half = None
        # After a full disk, a line of another process can follow a cut one without an end of line between them.
        for number, part in ((number, part) for number, whole in enumerate(_lines(file), 1) for part in _parts(whole)):
            # The line before is not the last one. If it is incomplete, it counts as cut and not as changed.
            self.cut += half is not None
            half = None
            line = part.removesuffix(b"\n")
            problem, found = None, _seal_of(line)
            if found is not None:
                self.sealed += 1
                problem = self._follow(found, is_first=found.chain not in chains)
                chains.add(found.chain)
            elif _is_cut(line):
                half = part
            else:
                problem = self._take_unsealed(line)
            if problem is not None:
                self._tell(f"{file}, line {number}: {problem}")
        if half is not None:
            # A line that is cut has no end, unless something was written after it.
            if half.endswith(b"\n"):
                self._tell(f"{file}, the last line: it is not what was written")
            else:
                self.cut += 1

    def _tell(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def _follow(self, seal: Seal, *, is_first: bool) -> str | None:
        """Returns what is wrong with a line's position in its chain. is_first: whether it is the first in its file."""
        # Each line of a chain follows the one before, by its number and by its checksum.
        end = self._ends.get(seal.chain)
        if end is None or (seal.number == 1 and is_first):
            # The files before the first one may be deleted. A chain may also begin anew in a file without a line of it.
            self._ends[seal.chain] = seal
            if seal.is_first:
                return None
            is_explained, self._changed = bool(self._changed), max(0, self._changed - 1)
            return None if is_explained else "the lines before it are missing"
        # A gap is explained by changed lines, which are reported already and whose chain is unknown.
        lost = seal.number - end.number - 1
        if lost < 0 or (not lost and seal.before != end.checksum):
            return "it is not where it was written"
        self._ends[seal.chain] = seal
        unexplained, self._changed = max(0, lost - self._changed), max(0, self._changed - lost) if lost else 0
        return f"lines of {seal.chain.decode()} that are missing before it: {unexplained}" if unexplained else None

    def _take_unsealed(self, line: bytes) -> str | None:
        if _mistake(line, _Unsealed):
            self._changed += 1
            return "it is not what was written"
        if self._ends:
            return "it has no seal: an older version or another program has written it"
        self.unsealed += 1
        return None


def _seal_of(line: bytes) -> Seal | None:
    found = _SEAL.search(line)
    if found is None or crc32(line[:-_CHECKSUM_BYTES]) != int(found[5], 16):
        return None
    return Seal(found[1], int(found[2]), bool(found[3]), int(found[4], 16), int(found[5], 16))


def _is_cut(line: bytes) -> bool:
    has_begin, has_end = _BEGIN.startswith(line[: len(_BEGIN)]), _WHOLE.search(line) is not None
    return has_begin and not has_end and "truncated" in _mistake(line, object)


def _mistake(line: bytes, kind: type) -> str:
    try:
        msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return ""


def _find_end(file: Path, chain: bytes) -> Seal | None:
    """Returns the last right seal of a chain in a file, which may be missing or no regular file."""
    if not file.is_file() or not file.stat().st_size:
        return None
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        # The quotation marks of texts are escaped in JSON, so no text of a peer looks like a seal.
        while (place := content.rfind(b',"seal":"%s:' % chain, 0, end)) >= 0:
            found = _seal_of(content[max(0, content.rfind(_BEGIN, 0, place)) : content.find(b"}", place) + 1])
            if found is not None:
                return found
            end = place
    return None


def _parts(line: bytes) -> list[bytes]:
    begins = line.rfind(_BEGIN) > 0
    return [part for part in _PARTS.split(line) if part] if begins else [line] if line != b"\n" else []


def _lines(file: Path) -> Iterator[bytes]:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        try:
            yield from opened
        except (EOFError, zlib.error) as error:
            raise OSError(f"{file}: the compressed file is damaged ({error})") from error

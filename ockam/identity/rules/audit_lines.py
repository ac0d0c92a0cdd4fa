"""The lines of an audit log: their number, which AuditLines bounds, and their seals, which AuditChain makes and which
`examine_audit` checks. This module writes no file.

AuditLines decides which lines are written, and counts the others. Equal lines of one second become one line and a
count. The number of different lines is bounded for each party and for all of one kind, so a flood of one party does not
hide the lines about the others.

A seal shows a changed, lost or moved line. Each line ends with the field `seal`: the name of its chain, its number in
the chain, the checksum of the line before it in the chain, and its own checksum, which covers all bytes before it. The
mark `^` says that the line is the first one of its chain in its file. Each process has a chain of its own, because
several write one file. A chain goes on in the next file after a rotation, and after a restart. A seal shows damage. It
does not protect against an attacker, who can compute it."""

from __future__ import annotations

import gzip
import mmap
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from ockam.identity.identity import ANONYMOUS
from ockam.quotas.usage import ANONYMOUS_PREFIX, party_key

PARTIES_MAX = 20
"""The most parties whose left out lines are counted apart, in one second. All other parties share one count."""
TOO_MANY = "too many different lines in a short time"
OTHERS = "others"


class Bound(NamedTuple):
    """The bound of the lines of one kind.

    party_max: the most lines about one party at once; `party_per_s` further ones are allowed each second.
    kind_max, kind_per_s: the same for all parties whose identities have the same source, such as all anonymous ones."""

    party_max: int
    party_per_s: int
    kind_max: int
    kind_per_s: int


REFUSALS = Bound(party_max=100, party_per_s=2, kind_max=400, kind_per_s=10)
"""Everybody who reaches the node can be refused. A flood of one party writes some 100 MB in a day."""
ACTS = Bound(party_max=1_000, party_per_s=10, kind_max=4_000, kind_per_s=40)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log without its time.

    event: "refused", "admitted" (a request for an administrative act was passed on to its worker), "limited" and
    "slowed" (a limit was exceeded: a request was refused, or reading had to wait), or an act of the node, such as
    "rules_loaded". An event that ends in "_again" or "_more" is a number of events that have no line of their own.
    peer: the `host:port` of the connection; only the host, or the network, in a line about several connections.
    name: the name on which the right was needed, such as that of a stream; the name of a limit.
    rule: the rule that decided. request: the name of the request's protocol. count: the number of equal events."""

    event: str
    identity: str = ""
    peer: str = ""
    right: str = ""
    name: str = ""
    rule: str = ""
    request: str = ""
    reason: str = ""
    count: int = 1


class _Repeated(msgspec.Struct):
    entry: Entry
    count: int = 0
    is_one_peer: bool = True


class AuditLines:
    """The lines of one kind, such as refusals. more: the event of a line that tells how many lines were left out.

    Invariant: the lines that `take` has admitted, and the counts of `end_interval`, add up to the calls of `take`."""

    def __init__(self, bound: Bound, *, more: str) -> None:
        self._bound = bound
        self._more = more
        self._repeated: dict[Entry, _Repeated] = {}
        self._by_party: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def take(self, entry: Entry, party: str | None = None) -> bool:
        """Counts a line. Returns whether it is to be written now. party: see `Audit.refused`."""
        if party is None:
            party = party_key(ANONYMOUS, entry.peer) if entry.identity == str(ANONYMOUS) else entry.identity
        # Each connection of a peer has another port, so the port makes no difference.
        host = entry.peer.rpartition(":")[0]
        key = msgspec.structs.replace(entry, peer=host)
        known = self._repeated.get(key)
        if known is not None:
            known.count += 1
            known.is_one_peer = known.is_one_peer and known.entry.peer == entry.peer
            return False
        # The line is new. It is written while its party and its kind have lines left.
        kind = party.partition(":")[0]
        if self._by_party[party] < self._bound.party_max and self._by_kind[kind] < self._bound.kind_max:
            self._by_party[party] += 1
            self._by_kind[kind] += 1
            self._repeated[key] = _Repeated(entry)
            return True
        is_full = party not in self._left_out and len(self._left_out) >= PARTIES_MAX
        self._left_out[OTHERS if is_full else party] += 1
        return False

    def end_interval(self) -> Iterator[Entry]:
        """Returns the lines with the counts since the last call. To be called every second."""
        repeated, self._repeated = self._repeated, {}
        left_out, self._left_out = self._left_out, Counter()
        # Each second makes room for some more lines.
        self._by_party = _less(self._by_party, self._bound.party_per_s)
        self._by_kind = _less(self._by_kind, self._bound.kind_per_s)
        for key, each in repeated.items():
            if each.count:
                peer = each.entry.peer if each.is_one_peer else key.peer
                yield msgspec.structs.replace(key, event=f"{key.event}_again", peer=peer, count=each.count)
        for party, count in left_out.items():
            is_anonymous = party.startswith(ANONYMOUS_PREFIX)
            identity = str(ANONYMOUS) if is_anonymous else party
            peer = party.removeprefix(ANONYMOUS_PREFIX) if is_anonymous else ""
            yield Entry(self._more, identity, peer, reason=TOO_MANY, count=count)


def _less(counts: Counter[str], number: int) -> Counter[str]:
    return Counter({key: count - number for key, count in counts.items() if count > number})


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
            elif _mistake(line, _Unsealed):
                self._changed += 1
                problem = "it is not what was written"
            elif self._ends:
                problem = "it has no seal: an older version or another program has written it"
            else:
                self.unsealed += 1
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

"""Reads one block while its items arrive, and computes the possible root hashes of the block.

    header, (other items)*, footer, proof+

The reader checks the order of the items, the size limits and the mandatory fields (verification level L0), and hashes
the items into subtrees (L1). It keeps only header, footer and proofs in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.items import BlockFooter, BlockHeader, Item, ItemKind, item_kind, read_footer, read_header
from block_node.blocks.merkle import CATEGORY_OF, BlockTree, Category, HashRules, RootCandidate, place_of
from block_node.blocks.proof_checks import RecordFileReader
from block_node.blocks.protobuf import BYTES, read_varint
from block_node.blocks.settings import VerifierSettings
from block_node.protocol import Piece

PLAIN_KINDS = (
    ItemKind.EVENT_HEADER,
    ItemKind.ROUND_HEADER,
    ItemKind.SIGNED_TRANSACTION,
    ItemKind.TRANSACTION_RESULT,
    ItemKind.TRANSACTION_OUTPUT,
    ItemKind.STATE_CHANGES,
    ItemKind.TRACE_DATA,
)
"""The kinds of nearly all items, hashed without parsing. Their tag has one byte, which is checked fast."""

HELD_BYTES_MAX = 1 << 16
"""The largest item that is hashed together with its prefix. For a larger one, two calls of the hash are faster."""

FOLD_LEAVES = 1024

HEAD_BYTES_MIN = 20
"""The number of bytes at the start of an item that always contain its whole tag and length."""


class Phase(Enum):
    NOTHING = auto()
    ITEMS = auto()
    FOOTER = auto()
    PROOFS = auto()


class BlockReader:
    """Reads one block, item by item. number: the expected number of the block; None accepts any.

    Every error is a VerificationFailed. After an error, every later call raises the same error again.

    - header, footer, proofs: the parts that are kept. rules: the hash rules that the header names.
    - roots: after `finish`, the possible root hashes, one for each hash scheme with these rules; empty without
      `Level.MERKLE`.
    - record_digest: the digest that record-file proofs sign; None without a record file or `Level.RECORD_PROOF`.

    Invariant: `_plain`, the kinds of item that are hashed without further checks, is empty except in `Phase.ITEMS`.
    """

    def __init__(self, number: int | None, settings: VerifierSettings) -> None:
        self.number = number
        self._failure: VerificationFailed | None = None
        self.item_count = 0
        self.size_bytes = 0
        self._settings = settings
        self._hashing = bool(settings.levels & Level.MERKLE)
        self._phase = Phase.NOTHING
        self.header: BlockHeader
        self.footer: BlockFooter
        self.proofs: list[Item] = []
        self.roots: tuple[RootCandidate, ...] = ()
        self._has_record = False
        self.record_digest: bytes | None = None
        # The header names the hash algorithm. Nothing is hashed before the header has arrived.
        self.rules = settings.hash_schemes[0].rules
        self._tree = BlockTree(())
        self._leaves: dict[int, list[bytes]] = {}
        self._leaf_count = 0
        self._plain: dict[int, Callable[[bytes], None]] = {}
        self._held = bytearray()
        self._large: LargeItem | None = None

    def add(self, items: Sequence[Item], piece: Piece = Piece.WHOLE) -> None:
        """Processes the next items, in order, or one piece of an item."""
        self._check_failure()
        if piece is not Piece.WHOLE:
            self.add_part(items[0], last=piece is Piece.LAST)
            return
        if self._held or self._large:
            raise self.failed(FailureKind.UNABLE_TO_PARSE, "an item in parts has no last part, and another item begins")
        self._count(len(items), sum(map(len, items)))
        rest = items
        if self._phase is Phase.NOTHING and items:
            # The header names the algorithm that hashes all later items, so it is read first.
            self._add_looked_at(items[0])
            rest = items[1:]
        # Nearly all items take the fast path: one field, whose tag and length have one byte each. Longer lengths
        # are checked by `_is_one_field`.
        hash_, leaf, hashing = self.rules.new, self.rules.leaf, self._hashing
        for item in rest:
            size = len(item)
            append = self._plain.get(item[0]) if size else None
            if append is not None and (
                (1 < size < 130 and item[1] == size - 2) or (size >= 130 and _is_one_field(item, size))
            ):
                if hashing:
                    append(hash_(leaf + item).digest())
            else:
                self._add_looked_at(item)
        # The leaves are folded many at a time, which also bounds the memory.
        self._leaf_count += len(items)
        if self._leaf_count >= FOLD_LEAVES:
            self._fold()

    def add_part(self, part: bytes, *, last: bool) -> None:
        """Processes the next piece, of any size, of an item. last: whether it is the last piece of the item."""
        self._check_failure()
        try:
            # An item that is too large to be held is hashed piece by piece.
            if self._large is not None:
                self._count(0, len(part))
                self._large.feed(part)
                if last:
                    self._end_large(self._large)
                    self._large = None
                return
            # Small items, and those that are kept whole anyway, are held until their last piece.
            self._held += part
            held_bytes = len(self._held)
            if not last and held_bytes > HELD_BYTES_MAX and not self._is_kept(item_kind(self._held[:10]), held_bytes):
                self._count(1, held_bytes)
                self._large = self._begin_large(bytes(self._held))
                self._held.clear()
        except BlockFormatError as error:
            raise self.failed(FailureKind.UNABLE_TO_PARSE, str(error)) from error
        if last:
            item = bytes(self._held)
            self._held.clear()
            self.add((item,))

    def finish(self) -> BlockReader:
        """Completes the block. Returns this reader, now with the root hashes. Raises VerificationFailed if a mandatory
        item is missing."""
        self._check_failure()
        if self._held or self._large:
            raise self.failed(FailureKind.UNABLE_TO_PARSE, "the block ends within an item")
        missing = {Phase.NOTHING: "header", Phase.ITEMS: "footer", Phase.FOOTER: "proof"}.get(self._phase)
        if missing is not None:
            raise self.failed(FailureKind.MISSING_MANDATORY_ITEM, f"it has no {missing}")
        self._fold()
        if self._hashing:
            assert self.header.timestamp is not None
            self.roots = self._tree.roots(self.header.timestamp, self.footer)
        return self

    def failed(self, kind: FailureKind, reason: str, level: Level = Level.STRUCTURE) -> VerificationFailed:
        self._failure = VerificationFailed(kind, level, self.number or 0, reason)
        return self._failure

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _count(self, items: int, size_bytes: int) -> None:
        self.item_count += items
        self.size_bytes += size_bytes
        if self.item_count > self._settings.items_max:
            raise self.failed(FailureKind.LIMIT_EXCEEDED, f"it has more than {self._settings.items_max} items")
        if self.size_bytes > self._settings.block_bytes_max:
            raise self.failed(FailureKind.LIMIT_EXCEEDED, f"it has more than {self._settings.block_bytes_max} bytes")

    def _is_kept(self, kind: int, size_bytes: int) -> bool:
        """Whether items of this kind are kept in memory. Raises VerificationFailed if the item is too large."""
        if kind not in (ItemKind.HEADER, ItemKind.FOOTER, ItemKind.PROOF):
            return False
        if size_bytes > self._settings.small_item_bytes_max:
            raise self._too_large(kind, self._settings.small_item_bytes_max)
        return True

    def _add_looked_at(self, item: Item) -> None:
        try:
            kind = item_kind(item)
            if self._is_kept(kind, len(item)):
                self._keep(kind, item)
            else:
                self._end_large(self._begin_large(item))
        except BlockFormatError as error:
            raise self.failed(FailureKind.UNABLE_TO_PARSE, str(error)) from error

    def _begin_large(self, head: bytes) -> LargeItem:
        """Starts to hash an item that is not kept. head: the whole item, or at least its first `HEAD_BYTES_MIN` bytes.
        Raises VerificationFailed, or BlockFormatError."""
        kind = item_kind(head[:HEAD_BYTES_MIN])
        if self._phase is Phase.NOTHING:
            raise self.failed(FailureKind.MISSING_MANDATORY_ITEM, f"it begins with an item {kind}, not with a header")
        if self._phase is not Phase.ITEMS:
            raise self.failed(FailureKind.BAD_STRUCTURE, f"an item {kind} follows the footer")
        if place_of(kind) is None:
            raise self.failed(FailureKind.UNSUPPORTED_ITEM_TYPE, f"items {kind} are not supported")
        if kind == ItemKind.RECORD_FILE:
            if self._has_record:
                raise self.failed(FailureKind.BAD_STRUCTURE, "it has two record files")
            self._has_record = True
        item = LargeItem(head, self.rules, read_record=bool(self._settings.levels & Level.RECORD_PROOF))
        if item.size > self._settings.item_bytes_max:
            raise self._too_large(kind, self._settings.item_bytes_max)
        return item

    def _end_large(self, item: LargeItem) -> None:
        leaf = item.leaf()
        place = place_of(item.kind)
        assert place is not None
        if place >= 0 and self._hashing:
            self._leaves.setdefault(place, []).append(leaf)
        if item.kind == ItemKind.RECORD_FILE:
            self.record_digest = item.record_digest()

    def _keep(self, kind: int, item: Item) -> None:
        if kind == ItemKind.HEADER:
            self._keep_header(item)
        elif self._phase is Phase.NOTHING:
            raise self.failed(FailureKind.MISSING_MANDATORY_ITEM, "it does not begin with a header")
        elif kind == ItemKind.FOOTER:
            if self._phase is not Phase.ITEMS:
                raise self.failed(FailureKind.BAD_STRUCTURE, "it has two footers")
            self._keep_footer(item)
        else:
            if self._phase is Phase.ITEMS:
                raise self.failed(FailureKind.MISSING_MANDATORY_ITEM, "it has a proof before the footer")
            if len(self.proofs) == self._settings.proofs_max:
                raise self.failed(FailureKind.LIMIT_EXCEEDED, f"it has more than {self._settings.proofs_max} proofs")
            self.proofs.append(item)
            self._phase = Phase.PROOFS

    def _keep_header(self, item: Item) -> None:
        if self._phase is not Phase.NOTHING:
            raise self.failed(FailureKind.BAD_STRUCTURE, "it has two headers")
        header = read_header(item)
        if self.number is not None and header.number != self.number:
            raise self.failed(FailureKind.BAD_STRUCTURE, f"its header says {header.number}")
        if header.timestamp is None:
            raise self.failed(FailureKind.MISSING_MANDATORY_FIELD, "its header has no timestamp")
        schemes = [each for each in self._settings.hash_schemes if each.rules.algorithm == header.hash_algorithm]
        if not schemes:
            reason = f"its header names hash algorithm {header.hash_algorithm}, which is not known"
            raise self.failed(FailureKind.UNSUPPORTED_STREAM_FORMAT, reason)
        # All later items are hashed by the algorithm of the header, once for each scheme that uses it.
        self.rules, self._tree = schemes[0].rules, BlockTree(schemes)
        self.number = header.number
        self.header = header
        self._phase = Phase.ITEMS
        # Each plain kind appends to the leaves of its subtree.
        for kind in PLAIN_KINDS:
            self._plain[kind << 3 | 2] = self._leaves.setdefault(CATEGORY_OF[kind], []).append
        # The header itself is a leaf too.
        if self._hashing:
            self._leaves[Category.OUTPUTS].append(self.rules.leaf_hash(item))

    def _keep_footer(self, item: Item) -> None:
        footer = read_footer(item)
        for name, root in (("previous", footer.previous_root), ("all-blocks", footer.all_blocks_root)):
            if not root:
                raise self.failed(FailureKind.MISSING_MANDATORY_FIELD, f"its footer has no {name} root")
        sizes = self._settings.hash_sizes
        for root in (footer.previous_root, footer.all_blocks_root, footer.state_root):
            if root and len(root) not in sizes:
                raise self.failed(FailureKind.UNABLE_TO_PARSE, f"a root in its footer has {len(root)} bytes")
        self.footer = footer
        self._phase = Phase.FOOTER
        self._plain = {}

    def _fold(self) -> None:
        for place, leaves in self._leaves.items():
            if leaves:
                self._tree.extend(place, leaves)
                # The list is emptied in place, because `_plain` appends to this same list object.
                leaves.clear()
        self._leaf_count = 0

    def _too_large(self, kind: int, limit: int) -> VerificationFailed:
        return self.failed(FailureKind.LIMIT_EXCEEDED, f"an item {kind} is larger than {limit} bytes")


class LargeItem:
    """The hash of one item that arrives in pieces, which are not kept. The first piece has the tag and the length."""

    def __init__(self, head: bytes | memoryview, rules: HashRules, *, read_record: bool) -> None:
        tag, offset = read_varint(head, 0)
        if tag & 7 != BYTES or not tag >> 3:
            raise BlockFormatError(f"a block item does not start with tag {tag}")
        content_size, offset = read_varint(head, offset)
        self.kind = tag >> 3
        self.size = offset + content_size
        self._left = content_size
        self._hash = rules.new(rules.leaf)
        self._hash.update(head[:offset])
        self._record = RecordFileReader() if read_record and self.kind == ItemKind.RECORD_FILE else None
        self.feed(memoryview(head)[offset:])

    def feed(self, piece: bytes | memoryview) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise BlockFormatError(f"an item has one field, {-self._left} bytes follow it", self.size)
        self._hash.update(piece)
        if self._record is not None:
            self._record.feed(piece)

    def leaf(self) -> bytes:
        if self._left:
            raise BlockFormatError(f"an item of {self.size} bytes lacks {self._left}", self.size - self._left)
        return self._hash.digest()

    def record_digest(self) -> bytes | None:
        """Returns the digest that record-file proofs sign, if it was computed. Raises BlockFormatError."""
        return self._record.digest() if self._record is not None else None


def _is_one_field(item: Item, size: int) -> bool:
    """Whether an item with a tag of one byte is exactly one field. False for a large item: a slower check follows."""
    if size > HELD_BYTES_MAX:
        return False
    try:
        content, offset = read_varint(item, 1)
    except BlockFormatError:
        return False
    return offset + content == size

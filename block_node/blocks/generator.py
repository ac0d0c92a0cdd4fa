"""Generates chains of blocks for tests, the demo and the benchmark, and the RSA keys that sign their record files. The
content of the items is random. The private keys are stored without encryption.

Every block contains a record file, the format that preceded blocks, and passes the verification levels L0 to L3:

    header, round header, transactions with result, output and state changes, …, record file, footer, record-file proof

The same shape, seed and first state of the chain give the same items, but for the proof: the signing keys decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha384
from itertools import cycle
from pathlib import Path
from random import Random

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from block_node.blocks.address_book import AddressBook
from block_node.blocks.block_reader import BlockReader
from block_node.blocks.chain import BlockResult, ChainState
from block_node.blocks.errors import AddressBookError, Level, SettingsError
from block_node.blocks.items import BlockFooter, Item, ItemKind, make_footer, make_header, make_item
from block_node.blocks.merkle import CURRENT, EMPTY_TREE, HashScheme, StreamingTree
from block_node.blocks.proof_checks import CONTENTS_FIELD, RECORD_VERSION
from block_node.blocks.proofs import ProofKind, RecordFileProof, RecordSignature, make_record_proof
from block_node.blocks.protobuf import bytes_field, number_field
from block_node.blocks.settings import VerifierSettings
from ockam.files.durable_files import make_folder, write_durably

KEY_BITS = 3072
"""Nodes of real networks have keys of this length."""

KEY_FILE = "node-{}.pem"
ADDRESS_BOOK_FILE = "address-book.json"


class SigningKeys:
    """The private keys of the nodes of a test network, by node number, and their public keys as an address book."""

    def __init__(self, keys: Mapping[int, RSAPrivateKey]) -> None:
        self._keys = dict(sorted(keys.items()))
        self.address_book = AddressBook({node_id: key.public_key() for node_id, key in self._keys.items()})

    @classmethod
    def generate(cls, node_count: int = 1, key_bits: int = KEY_BITS) -> SigningKeys:
        """Generates keys for nodes 0 to `node_count` - 1. A key of 3072 bits takes a few tenths of a second."""
        keys = {node_id: generate_private_key(65537, key_bits) for node_id in range(node_count)}
        return cls(keys)

    def sign(self, message: bytes) -> tuple[RecordSignature, ...]:
        return tuple(
            RecordSignature(node_id, key.sign(message, PKCS1v15(), SHA384())) for node_id, key in self._keys.items()
        )

    def save(self, folder: Path) -> None:
        make_folder(folder)
        for node_id, key in self._keys.items():
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_durably(folder / KEY_FILE.format(node_id), pem, mode=0o600)
        # The address book is written last, so that a folder with an address book always has all keys.
        write_durably(folder / ADDRESS_BOOK_FILE, self.address_book.format())

    @classmethod
    def load(cls, folder: Path) -> SigningKeys:
        """Loads keys that `save` wrote. Raises AddressBookError."""
        book = AddressBook.load(folder / ADDRESS_BOOK_FILE)
        keys = {}
        for node_id in book.node_ids:
            path = folder / KEY_FILE.format(node_id)
            try:
                key = load_pem_private_key(path.read_bytes(), None)
            except OSError as error:
                raise AddressBookError(f"{path}: {error.strerror or error}") from error
            except (ValueError, TypeError, UnsupportedAlgorithm) as error:
                raise AddressBookError(f"{path} is no private key: {error}") from error
            if not isinstance(key, RSAPrivateKey):
                raise AddressBookError(f"{path} is no RSA key")
            keys[node_id] = key
        return cls(keys)


FIXED_ITEMS = 4
"""Every generated block has a header, a record file, a footer and a proof."""

HAPI_VERSION = (0, 78, 0)

START_SECONDS = 1_750_000_000
"""The timestamp of block 0 in seconds since 1970. The timestamp of each next block is two seconds later."""

KINDS = (
    ItemKind.ROUND_HEADER,
    ItemKind.EVENT_HEADER,
    ItemKind.SIGNED_TRANSACTION,
    ItemKind.TRANSACTION_RESULT,
    ItemKind.TRANSACTION_OUTPUT,
    ItemKind.STATE_CHANGES,
    ItemKind.TRACE_DATA,
)


class BlockShape(msgspec.Struct, frozen=True, kw_only=True):
    """The size and form of generated blocks.

    item_count: the number of items, with header, record file, footer and proof.
    item_bytes: the size of the content of every other item. record_bytes: the size of the content of the record file.
    """

    item_count: int = 10
    item_bytes: int = 100
    record_bytes: int = 200
    scheme: HashScheme = CURRENT
    hapi_version: tuple[int, int, int] = HAPI_VERSION

    def check(self) -> None:
        if self.item_count < FIXED_ITEMS:
            raise SettingsError(f"item_count: a block has at least {FIXED_ITEMS} items")
        if self.item_bytes < 0 or self.record_bytes < 0:
            raise SettingsError("item_bytes, record_bytes: must not be negative")


class GeneratedBlock(msgspec.Struct, frozen=True):
    number: int
    root: bytes
    items: tuple[Item, ...]


class ChainGenerator:
    """Generates blocks that continue `chain`. Set `chain` to an earlier state to generate a fork."""

    def __init__(
        self,
        keys: SigningKeys,
        *,
        shape: BlockShape | None = None,
        chain: ChainState | None = None,
        seed: int = 0,
    ) -> None:
        """Raises SettingsError if `shape` is invalid, or if `chain` lacks the next number, the last root hash or the
        all-blocks tree."""
        self.shape = shape or BlockShape()
        self.shape.check()
        chain = chain or ChainState()
        self.chain = chain.settled(chain.open[0].root, self.shape.scheme.rules) if chain.open else chain
        if self.chain.next_number is None or self.chain.previous_root is None or self.chain.peaks is None:
            raise SettingsError("chain: a generated block must know all blocks before it")
        self._keys = keys
        self._seed = seed

    def next_block(self) -> GeneratedBlock:
        items = tuple(self.next_items())
        assert self.chain.next_number is not None
        assert self.chain.previous_root is not None
        return GeneratedBlock(self.chain.next_number - 1, self.chain.previous_root, items)

    def blocks(self, count: int) -> Iterator[GeneratedBlock]:
        for _ in range(count):
            yield self.next_block()

    def next_items(self) -> Iterator[Item]:
        """Yields the items of the next block, generated one by one. `chain` advances when the iterator ends."""
        chain = self.chain
        assert chain.next_number is not None
        assert chain.previous_root is not None
        assert chain.peaks is not None
        number = chain.next_number
        scheme = self.shape.scheme
        levels = Level.STRUCTURE | Level.MERKLE | Level.RECORD_PROOF
        reader = BlockReader(number, VerifierSettings(levels=levels, hash_schemes=(scheme,)))
        all_blocks_root = StreamingTree.from_peaks(chain.peaks, scheme.rules).root()
        # No block is before block 0, so its footer names the empty tree of the algorithm in use.
        previous_root = scheme.rules.empty if chain.previous_root == EMPTY_TREE else chain.previous_root
        footer = BlockFooter(previous_root, all_blocks_root, scheme.rules.empty)
        # The reader hashes the items as they go out.
        for item in self._content(number):
            reader.add((item,))
            yield item
        last = make_footer(footer)
        reader.add((last,))
        yield last
        # The proof signs the digest of the record file, which is complete now.
        digest = reader.record_digest
        assert digest is not None
        proof = make_record_proof(number, RecordFileProof(RECORD_VERSION, self._keys.sign(digest)))
        reader.add((proof,))
        block = reader.finish()
        result = BlockResult(
            number=number,
            roots=block.roots,
            previous_root=footer.previous_root,
            all_blocks_root=footer.all_blocks_root,
            item_count=block.item_count,
            size_bytes=block.size_bytes,
            checked=Level.STRUCTURE | Level.MERKLE | Level.RECORD_PROOF,
            proofs=(ProofKind.RECORD_FILE,),
            rules=block.rules,
        )
        yield proof
        self.chain = chain.advanced(result, len(chain.claims))

    def _content(self, number: int) -> Iterator[Item]:
        """Yields all items that precede the footer. Seed and block number determine their random content."""
        shape = self.shape
        seconds = START_SECONDS + 2 * number
        random = Random(sha384(f"{self._seed}/{number}".encode()).digest())
        yield make_header(number, shape.hapi_version, seconds, 0, shape.scheme.rules.algorithm)
        for kind, _ in zip(cycle(KINDS), range(shape.item_count - FIXED_ITEMS), strict=False):
            yield make_item(kind, random.randbytes(shape.item_bytes))
        time = bytes_field(1, number_field(1, seconds))
        yield make_item(ItemKind.RECORD_FILE, time + bytes_field(CONTENTS_FIELD, random.randbytes(shape.record_bytes)))

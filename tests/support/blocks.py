"""Blocks to test with: the real ones beside the repository, and keys and chains of our own."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from block_node.blocks.address_book import AddressBook, AddressBooks
from block_node.blocks.errors import Level
from block_node.blocks.generator import SigningKeys
from block_node.blocks.items import Item, item_prefix, split_block
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import SignedRoot, Verifier

ALL_BUT_TSS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.RECORD_PROOF | Level.STATE_PROOF

# The beginnings of the blocks' roots, from the table of the facts.
ROOTS = {
    "SOLO_4N": ["cc2c7c849e986345", "8b70cecb8deabc57", "6cfb9066c335aebe", "6204e2c36e154b15", "32806f4d9977cf41"],
    "SCHNORR": [
        "85d7117a94f09115",
        "9799848eff342061",
        "0facbf0e5d94d457",
        "9d1ac9ba0c57558a",
        "e313796875ef1006",
        "1c417b370965dd85",
    ],
}


def join_block(items: Iterable[Item]) -> bytes:
    """Serializes items to a `Block`."""
    return b"".join(part for item in items for part in (item_prefix(len(item)), item))


@cache
def signing_keys() -> SigningKeys:
    """Two nodes' keys, small ones, made once a run."""
    return SigningKeys.generate(2, 2048)


@cache
def real_blocks(shared_dir: Path, name: str) -> tuple[bytes, ...]:
    """The serialized blocks of one recording, from block 0 on."""
    folder = shared_dir / "data" / "hiero" / name
    return tuple(gzip.decompress((folder / f"{number}.blk.gz").read_bytes()) for number in range(len(ROOTS[name])))


@cache
def real_roots(shared_dir: Path, name: str) -> dict[int, bytes]:
    """The roots of the real blocks in full, which must begin as the table says."""
    verifier = Verifier(VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE))
    roots = {}
    for number, block in enumerate(real_blocks(shared_dir, name)):
        roots[number] = verifier.verify(split_block(block), number).root
        assert roots[number].hex().startswith(ROOTS[name][number])
    return roots


def real_books(shared_dir: Path) -> AddressBooks:
    """The address book of SOLO_4N."""
    return AddressBooks.always(AddressBook.load(shared_dir / "data" / "hiero" / "SOLO_4N" / "address-book.json"))


class KnownSignatures:
    """An external verifier that knows which signature belongs to which root, as the ledger's key would tell."""

    def __init__(self, known: set[tuple[bytes, bytes]]) -> None:
        self.known = known
        self.asked: list[SignedRoot] = []

    def verify_tss(self, signed: SignedRoot) -> bool:
        self.asked.append(signed)
        return (signed.root, signed.signature) in self.known


def own_verifier(levels: Level = ALL_BUT_TSS) -> Verifier:
    """A verifier for chains that `signing_keys` signed."""
    return Verifier(VerifierSettings(levels=levels), address_books=AddressBooks.always(signing_keys().address_book))

"""RSA record-file proofs (L3) and address books."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha384
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.address_book import AddressBook, AddressBooks
from block_node.blocks.errors import AddressBookError, BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.generator import ChainGenerator, SigningKeys
from block_node.blocks.items import Item, ItemKind, make_item
from block_node.blocks.proof_checks import RecordFileReader
from block_node.blocks.proofs import RecordFileProof, RecordSignature, make_record_proof, read_proof
from block_node.blocks.protobuf import bytes_field, read_fields
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import ALL_BUT_TSS, signing_keys


@cache
def small_key_hex(bits: int) -> str:
    key = generate_rsa(65537, bits).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()


def good_block() -> list[Item]:
    return list(ChainGenerator(signing_keys()).next_block().items)


def proof_of(block: list[Item]) -> RecordFileProof:
    content = read_proof(block[-1]).content
    assert isinstance(content, RecordFileProof)
    return content


def verify(
    block: list[Item], book: AddressBook | AddressBooks | None = None, *, minimum: int = 1, skip: bool = False
) -> Level:
    books = book if isinstance(book, AddressBooks) else AddressBooks.always(book or signing_keys().address_book)
    settings = VerifierSettings(levels=ALL_BUT_TSS, signatures_min=minimum, skip_unknown_signers=skip)
    return Verifier(settings, address_books=books).verify(block).checked


def failure_of(
    block: list[Item], book: AddressBook | AddressBooks | None = None, *, minimum: int = 1, skip: bool = False
) -> tuple[FailureKind, str]:
    with pytest.raises(VerificationFailed) as failure:
        verify(block, book, minimum=minimum, skip=skip)
    assert failure.value.level is Level.RECORD_PROOF
    return failure.value.kind, failure.value.reason


def with_signatures(block: list[Item], *signatures: RecordSignature, version: int = 6) -> list[Item]:
    return [*block[:-1], make_record_proof(0, RecordFileProof(version, signatures))]


def test_both_signatures_count() -> None:
    """Goal: as many valid signatures as asked for. Method: two nodes' signatures, two asked for, then three."""
    assert verify(good_block(), minimum=2) & Level.RECORD_PROOF
    kind, reason = failure_of(good_block(), minimum=3)
    assert (kind, reason) == (FailureKind.BAD_BLOCK_PROOF, "2 nodes signed its record file, 3 must")


def test_one_bad_signature_is_one_too_many() -> None:
    """Goal: a known node's bad signature fails the block whatever the others say. Method: a flipped bit; a signature
    under another node's number; one of another block."""
    block = good_block()
    first, second = proof_of(block).signatures
    flipped = RecordSignature(0, bytes([first.signature[0] ^ 1]) + first.signature[1:])
    other = proof_of(list(ChainGenerator(signing_keys(), seed=1).next_block().items)).signatures[1]
    for signatures in ([flipped, second], [RecordSignature(1, first.signature), second], [first, other]):
        kind, reason = failure_of(with_signatures(block, *signatures))
        assert kind is FailureKind.BAD_BLOCK_PROOF
        assert "is not one over its record file" in reason


def test_what_is_no_signature_does_not_count() -> None:
    """Goal: no proof without a valid signature. Method: none, empty ones, all zeros, one node twice."""
    block = good_block()
    first, second = proof_of(block).signatures
    for nothing in ((), (RecordSignature(0, b""),), (RecordSignature(0, bytes(256)), RecordSignature(1, bytes(256)))):
        assert failure_of(with_signatures(block, *nothing))[0] is FailureKind.BAD_BLOCK_PROOF
    assert verify(with_signatures(block, first, RecordSignature(1, bytes(256))))
    assert failure_of(with_signatures(block, first, first), minimum=2)[1].startswith("1 nodes signed")
    assert verify(with_signatures(block, first, first, second), minimum=2)


def test_a_repeated_signature_is_checked_once() -> None:
    """Goal: a proof full of one good signature does not keep us busy. Method: how often the node's key is asked, by a
    key that counts."""

    class CountingKey:
        def __init__(self, node_id: int) -> None:
            self.key, self.asked = read_key(node_id), 0

        def verify(self, *arguments: Any) -> None:
            self.asked += 1
            self.key.verify(*arguments)

        key_size = 2048

    keys: dict[int, Any] = {0: CountingKey(0), 1: CountingKey(1)}
    block = good_block()
    first, second = proof_of(block).signatures
    assert verify(with_signatures(block, *[first, second] * 500), AddressBook(keys), minimum=2)
    assert [key.asked for key in keys.values()] == [1, 1]


def test_a_signer_that_the_address_book_lacks() -> None:
    """Goal: an address book with a missing key is told from a bad proof, and can be lived with if the operator says so.
    Method: a book of one of the two nodes, both ways; a book of neither."""
    first = AddressBook({0: read_key(0)})
    kind, reason = failure_of(good_block(), first)
    assert (kind, reason) == (
        FailureKind.MISSING_VERIFICATION_DATA,
        "node 1 signed it, and is not in the address book",
    )
    assert verify(good_block(), first, skip=True)
    foreign = SigningKeys.generate(1, 2048).address_book
    assert failure_of(good_block(), foreign, skip=True)[0] is FailureKind.BAD_BLOCK_PROOF
    neither = AddressBook({7: read_key(0)})
    assert failure_of(good_block(), neither, skip=True)[1] == "0 nodes signed its record file, 1 must"


def read_key(node_id: int) -> Any:
    key = signing_keys().address_book.find_key(node_id)
    assert key
    return key


def test_other_versions_and_missing_record_files() -> None:
    """Goal: only version 6 of a record file that is there. Method: version 5; no record file; one without contents."""
    block = good_block()
    assert failure_of(with_signatures(block, version=5))[0] is FailureKind.UNSUPPORTED_STREAM_FORMAT
    without = [item for item in block if item is not block[-3]]
    assert failure_of(without)[0] is FailureKind.MISSING_MANDATORY_ITEM
    empty = [*block[:-3], make_item(ItemKind.RECORD_FILE, bytes_field(1, b"")), *block[-2:]]
    assert failure_of(empty)[0] is FailureKind.MISSING_MANDATORY_ITEM


def test_the_book_of_the_block_is_asked() -> None:
    """Goal: books are valid for ranges of blocks. Method: the right one, another one, none, for three blocks."""
    generator = ChainGenerator(signing_keys())
    blocks = list(generator.blocks(3))
    other = SigningKeys.generate(1, 2048).address_book
    books = AddressBooks([(1, 1, signing_keys().address_book), (0, 0, other)])
    settings = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.RECORD_PROOF)
    verifier = Verifier(settings, address_books=books)
    with pytest.raises(VerificationFailed) as failure:
        verifier.verify(blocks[0].items)
    assert failure.value.kind in (FailureKind.BAD_BLOCK_PROOF, FailureKind.MISSING_VERIFICATION_DATA)
    verifier.verify(blocks[1].items)
    with pytest.raises(VerificationFailed, match="there is no address book for it"):
        verifier.verify(blocks[2].items)


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([], "there is no address book"),
        ([(3, 2)], "blocks 3 to 2 are no range"),
        ([(-1, 2)], "no range"),
        ([(0, 5), (5, None)], "two address books are for block 5"),
        ([(0, None), (9, None)], "two address books are for block 9"),
    ],
)
def test_ranges_of_books_are_clear(ranges: list[tuple[int, int | None]], reason: str) -> None:
    """Goal: at most one book for a block. Method: none, empty, negative, and overlapping ranges."""
    with pytest.raises(AddressBookError, match=reason):
        AddressBooks([(first, last, signing_keys().address_book) for first, last in ranges])


def entry(**members: Any) -> str:
    return json.dumps({"nodeAddress": [members]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        ("[]", 'no list "nodeAddress"'),
        ('{"nodeAddress": {}}', 'no list "nodeAddress"'),
        ('{"nodeAddress": []}', "no node"),
        ('{"nodeAddress": [3]}', "entry 0 of the address book is no object"),
        (entry(), "no RSAPubKey for node 0"),
        (entry(nodeId="3"), "no RSAPubKey for node 3"),
        (entry(RSAPubKey=""), "no RSAPubKey"),
        (entry(RSAPubKey="zz"), "no hex of a DER public key"),
        (entry(RSAPubKey="3082"), "no hex of a DER public key"),
        (entry(RSAPubKey="00", nodeId="-1"), "nodeId is '-1', no number"),
        (entry(RSAPubKey="00", nodeId=None), "nodeId is None, no number"),
        (entry(RSAPubKey="00", nodeId=True), "nodeId is True, no number"),
        (entry(RSAPubKey="00", nodeId="9" * 30), "no number"),
    ],
)
def test_bad_address_books_are_refused(text: str | bytes, reason: str) -> None:
    """Goal: what is no address book is told what is wrong with it. Method: one fault each."""
    with pytest.raises(AddressBookError, match=reason):
        AddressBook.parse(text)


def test_keys_that_prove_nothing_are_refused() -> None:
    """Goal: no weak keys, no other kinds, no node twice. Method: 1024 bits, an elliptic curve, a number twice."""
    with pytest.raises(AddressBookError, match="has 1024 bits"):
        AddressBook.parse(entry(RSAPubKey=small_key_hex(1024)))
    curve = generate_private_key(SECP384R1()).public_key()
    der = curve.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()
    with pytest.raises(AddressBookError, match="no RSA key"):
        AddressBook.parse(entry(RSAPubKey=der))
    good = {"RSAPubKey": small_key_hex(2048)}
    with pytest.raises(AddressBookError, match="node 0 twice"):
        AddressBook.parse(json.dumps({"nodeAddress": [good, {**good, "nodeId": "0"}]}))


def test_a_book_is_serialized_as_the_status_tells_it(shared_dir: Path) -> None:
    """Goal: a `NodeAddressBook` that any reader of the schema reads. Method: the fields by their numbers; then back."""
    real = AddressBook.load(shared_dir / "data" / "hiero" / "SOLO_4N" / "address-book.json")
    data = real.serialize()
    entries = [
        dict((field, value) for field, _, value in read_fields(bytes(entry))) for _, _, entry in read_fields(data)
    ]
    written = json.loads(real.format())["nodeAddress"]
    assert [bytes(entry[4]).decode() for entry in entries] == [each["RSAPubKey"] for each in written]
    assert [entry.get(5, 0) for entry in entries] == [0, 1, 2, 3]
    assert AddressBook.deserialize(data).format() == real.format()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x02\x22\x00", b"\x0a\x02\x20\x01", b"\x0a\x00"])
def test_what_is_no_serialized_book_is_refused(data: bytes) -> None:
    with pytest.raises(AddressBookError, match="address book"):
        AddressBook.deserialize(data)


def test_books_are_read_as_they_were_written(tmp_path: Path, shared_dir: Path) -> None:
    """Goal: the file format of the real node. Method: its own file, read, written and read again; then none."""
    real = AddressBook.load(shared_dir / "data" / "hiero" / "SOLO_4N" / "address-book.json")
    assert real.node_ids == (0, 1, 2, 3)
    assert AddressBook.parse(real.format()).format() == real.format()
    with pytest.raises(AddressBookError, match=r"gone\.json: No such file"):
        AddressBook.load(tmp_path / "gone.json")
    (tmp_path / "book.json").write_text("{}")
    with pytest.raises(AddressBookError, match=r"book\.json: the address book has no list"):
        AddressBook.load(tmp_path / "book.json")


def test_keys_are_kept(tmp_path: Path) -> None:
    """Goal: a test network can be gone on with. Method: save, load, the same book; then damaged and missing files."""
    folder = tmp_path / "keys"
    signing_keys().save(folder)
    assert SigningKeys.load(folder).address_book.format() == signing_keys().address_book.format()
    assert (folder / "node-0.pem").stat().st_mode & 0o077 == 0
    (folder / "node-1.pem").write_text("nothing")
    with pytest.raises(AddressBookError, match=r"node-1\.pem is no private key"):
        SigningKeys.load(folder)
    (folder / "node-1.pem").unlink()
    with pytest.raises(AddressBookError, match=r"node-1\.pem: No such file"):
        SigningKeys.load(folder)


@given(
    st.binary(max_size=60), st.binary(max_size=400), st.binary(max_size=60), st.lists(st.integers(1, 40), max_size=60)
)
def test_what_is_signed_is_found_in_pieces(time: bytes, contents: bytes, sidecar: bytes, sizes: list[int]) -> None:
    """Goal: the digest does not depend on how the record file comes. Method: pieces of any size, against one hash."""
    item = bytes_field(1, time) + bytes_field(2, contents) + bytes_field(3, sidecar)
    reader, at = RecordFileReader(), 0
    for size in sizes:
        reader.feed(item[at : at + size])
        at += size
    reader.feed(item[at:])
    assert reader.digest() == sha384(b"\0\0\0\6" + contents).digest()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes_field(2, b"x") * 2, "two record files"),
        (b"\x12", "cut short"),
        (b"\x12\x05ab", "cut short"),
        (b"\x08\x05", "no field with tag 8"),
        (b"\x02\x00", "no field with tag 2"),
        (b"\xff" * 30, "no length"),
    ],
)
def test_irregular_record_files_are_refused(content: bytes, reason: str) -> None:
    """Goal: one record file, whole. Method: one fault each."""
    reader = RecordFileReader()

    def read() -> None:
        reader.feed(content)
        reader.digest()

    with pytest.raises(BlockFormatError, match=reason):
        read()

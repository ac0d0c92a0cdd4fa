"""Address books: the RSA public keys of the nodes that may sign record files.

The file format is JSON with one entry per node: `{"nodeAddress": [{"nodeId": "1", "RSAPubKey": "<hex of a DER
SubjectPublicKeyInfo>"}, …]}`. An entry without `nodeId` is for node 0. Other JSON members are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from block_node.blocks.errors import AddressBookError, BlockFormatError
from block_node.blocks.protobuf import bytes_field, bytes_value, number_field, read_fields
from ockam.files.parsing import ParseError, parse_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

KEY_BITS_MIN = 2048
"""Signatures with shorter RSA keys can be forged too easily. Nodes of real networks have keys of 3072 bits."""

KEY_BITS_MAX = 16384
"""With a longer RSA key, checking a signature takes too long: a malicious address book could block the node."""


class AddressBook:
    """The public keys of the nodes of a network. Raises AddressBookError if a key or number is invalid."""

    def __init__(self, keys: Mapping[int, RSAPublicKey]) -> None:
        if not keys:
            raise AddressBookError("the address book has no node: nothing could be verified against it")
        for node_id, key in keys.items():
            if not 0 <= node_id < 1 << 64:
                raise AddressBookError(f"{node_id} is no node number")
            if not KEY_BITS_MIN <= key.key_size <= KEY_BITS_MAX:
                raise AddressBookError(
                    f"the key of node {node_id} has {key.key_size} bits, {KEY_BITS_MIN} to {KEY_BITS_MAX} are accepted"
                )
        self._keys = dict(keys)

    def find_key(self, node_id: int) -> RSAPublicKey | None:
        return self._keys.get(node_id)

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._keys))

    @classmethod
    def parse(cls, text: bytes | str) -> AddressBook:
        """Parses an address book from its JSON text. Raises AddressBookError."""
        try:
            book = parse_json(text)
        except ParseError as error:
            raise AddressBookError(f"the address book is no JSON: {error}") from error
        entries = book.get("nodeAddress") if isinstance(book, dict) else None
        if not isinstance(entries, list):
            raise AddressBookError('the address book has no list "nodeAddress"')
        keys: dict[int, RSAPublicKey] = {}
        for place, entry in enumerate(entries):
            node_id = _read_node_id(entry, place)
            if node_id in keys:
                raise AddressBookError(f"the address book has node {node_id} twice")
            keys[node_id] = _read_key(entry, node_id)
        return cls(keys)

    @classmethod
    def load(cls, path: Path) -> AddressBook:
        """Reads an address book from a JSON file. Raises AddressBookError."""
        try:
            return cls.parse(path.read_bytes())
        except OSError as error:
            raise AddressBookError(f"{path}: {error.strerror or error}") from error
        except AddressBookError as error:
            raise AddressBookError(f"{path}: {error}") from error

    def serialize(self) -> bytes:
        """Serializes the book as a `NodeAddressBook` with a `NodeAddress` for each node (facts/block_node.md §1.6).

        NodeAddressBook = repeated NodeAddress nodeAddress = 1
        NodeAddress     = string RSA_PubKey = 4 (hex of the DER), int64 nodeId = 5
        """
        entries = []
        for node_id in self.node_ids:
            key = self._der(node_id).hex().encode()
            entries.append(bytes_field(1, bytes_field(4, key) + number_field(5, node_id)))
        return b"".join(entries)

    @classmethod
    def deserialize(cls, data: bytes) -> AddressBook:
        """Parses a `NodeAddressBook`. Other fields of a `NodeAddress` are ignored. Raises AddressBookError."""
        keys: dict[int, RSAPublicKey] = {}
        try:
            for _, wire, entry in read_fields(data):
                fields = {number: value for number, _, value in read_fields(bytes_value(wire, entry, "a node address"))}
                key, node_id = fields.get(4, b""), fields.get(5, 0)
                if isinstance(key, int) or not isinstance(node_id, int) or node_id in keys:
                    raise AddressBookError("the address book has an entry without a key or number, or one twice")
                keys[node_id] = _read_key({"RSAPubKey": bytes(key).decode("ascii", "replace")}, node_id)
        except BlockFormatError as error:
            raise AddressBookError(f"the address book is no NodeAddressBook: {error}") from error
        return cls(keys)

    def format(self) -> bytes:
        entries: list[dict[str, str]] = []
        for node_id in self.node_ids:
            entry = {"RSAPubKey": self._der(node_id).hex()}
            if node_id:
                entry["nodeId"] = str(node_id)
            entries.append(entry)
        return msgspec.json.format(msgspec.json.encode({"nodeAddress": entries}), indent=2) + b"\n"

    def _der(self, node_id: int) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._keys[node_id].public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class AddressBooks:
    """The address books of a chain, each for a range of blocks: (first block, last block or None, book). Raises
    AddressBookError if there is no range, or if ranges are invalid or overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int | None, AddressBook]]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each[0])
        if not self._ranges:
            raise AddressBookError("there is no address book")
        end: int | None = -1
        for first, last, _ in self._ranges:
            if first < 0 or (last is not None and last < first):
                raise AddressBookError(f"blocks {first} to {last} are no range for an address book")
            if end is None or first <= end:
                raise AddressBookError(f"two address books are for block {first}")
            end = last

    @classmethod
    def always(cls, book: AddressBook) -> AddressBooks:
        return cls([(0, None, book)])

    def find(self, number: int) -> AddressBook | None:
        for first, last, book in self._ranges:
            if first <= number and (last is None or number <= last):
                return book
        return None


def _read_node_id(entry: Any, place: int) -> int:
    if not isinstance(entry, dict):
        raise AddressBookError(f"entry {place} of the address book is no object")
    value = entry.get("nodeId", 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise AddressBookError(f"entry {place} of the address book: nodeId is {value!r}, no number")
    return value


def _read_key(entry: dict[str, Any], node_id: int) -> RSAPublicKey:
    # Imported here, so that a node without an address book saves the 8 MB of cryptography.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    text = entry.get("RSAPubKey")
    if not isinstance(text, str) or not text:
        raise AddressBookError(f"the address book has no RSAPubKey for node {node_id}")
    try:
        key = load_der_public_key(bytes.fromhex(text.removeprefix("0x")))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AddressBookError(f"the key of node {node_id} is no hex of a DER public key: {error}") from error
    if not isinstance(key, RSAPublicKey):
        raise AddressBookError(f"the key of node {node_id} is no RSA key")
    return key

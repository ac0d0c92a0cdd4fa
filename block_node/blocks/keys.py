"""The RSA keys that sign record files in a private test network. The private keys are stored without encryption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from block_node.blocks.address_book import AddressBook
from block_node.blocks.errors import AddressBookError
from block_node.blocks.proofs import RecordSignature
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

"""The block node: receives chains of blocks from publishers, verifies and stores them, and serves subscribers.

- `BlockNode`, `ReadServices` and `BackfillService` are the three main parts of a node.
- `Facility` delivers events to plugins. A `Plugin` is a part that handles events, for example `Persistence`.
- `BlockVerification` verifies one block. `read_items` and `write_block` read and write block files. `ChainGenerator`
  generates chains for tests.
- The client of a block node is `block_node.client`.

A name is imported when a program first uses it. So clients and exports do not load the code of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from block_node.backfill.service import BackfillService
    from block_node.blocks.address_book import AddressBook, AddressBooks
    from block_node.blocks.errors import (
        AddressBookError,
        BlockError,
        BlockFileError,
        BlockFormatError,
        SettingsError,
        VerificationFailed,
    )
    from block_node.blocks.files import find_blocks, read_items, write_block
    from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
    from block_node.blocks.settings import VerifierSettings
    from block_node.blocks.verifier import BlockVerification, Verifier
    from block_node.facility import Facility, Plugin
    from block_node.node import BlockNode, BlockNodeSettings
    from block_node.persist.plugin import Persistence
    from block_node.persist.retention import BlockRetention
    from block_node.persist.store import BlockStore
    from block_node.publish.limits import PublishLimits
    from block_node.publish.service import PublishService
    from block_node.read.services import ReadServices

__all__ = [
    "AddressBook",
    "AddressBookError",
    "AddressBooks",
    "BackfillService",
    "BlockError",
    "BlockFileError",
    "BlockFormatError",
    "BlockNode",
    "BlockNodeSettings",
    "BlockRetention",
    "BlockShape",
    "BlockStore",
    "BlockVerification",
    "ChainGenerator",
    "Facility",
    "GeneratedBlock",
    "Persistence",
    "Plugin",
    "PublishLimits",
    "PublishService",
    "ReadServices",
    "SettingsError",
    "VerificationFailed",
    "Verifier",
    "VerifierSettings",
    "find_blocks",
    "read_items",
    "write_block",
]

_MODULES = {
    "AddressBook": "blocks.address_book",
    "AddressBookError": "blocks.errors",
    "AddressBooks": "blocks.address_book",
    "BackfillService": "backfill.service",
    "BlockError": "blocks.errors",
    "BlockFileError": "blocks.errors",
    "BlockFormatError": "blocks.errors",
    "BlockNode": "node",
    "BlockNodeSettings": "node",
    "BlockRetention": "persist.store",
    "BlockShape": "blocks.generator",
    "BlockStore": "persist.store",
    "BlockVerification": "blocks.verifier",
    "ChainGenerator": "blocks.generator",
    "Facility": "facility",
    "GeneratedBlock": "blocks.generator",
    "Persistence": "persist.plugin",
    "Plugin": "facility",
    "PublishLimits": "publish.limits",
    "PublishService": "publish.service",
    "ReadServices": "read.services",
    "SettingsError": "blocks.errors",
    "VerificationFailed": "blocks.errors",
    "Verifier": "blocks.verifier",
    "VerifierSettings": "blocks.settings",
    "find_blocks": "blocks.files",
    "read_items": "blocks.files",
    "write_block": "blocks.files",
}
"""The module, relative to this package, that defines each public name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

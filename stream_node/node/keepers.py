"""The streams that a node keeps for itself, and the built-in rules that forbid all others to change them. This
module imports no service, because one that is off must not slow the start of a node."""

from __future__ import annotations

from block_node.persist.mark import STREAM_PREFIX
from ockam.actors.address import Address
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from stream_node.node.config import Config
from stream_service.names import stream_address

BLOCK_KEEPERS = (
    Rule(
        "the block node keeps its streams",
        (),
        may_not=Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN,
        on=(STREAM_PREFIX,),
        keeper=Identity("local", "block-node"),
        reason=f"a stream whose name begins with {STREAM_PREFIX!r} is made and written by the block node alone",
    ),
)
"""The built-in rules. They forbid everybody except the block node to change the streams of the block node."""


def keepers_of(config: Config) -> tuple[Rule, ...]:
    """Returns the built-in rules of a node with these settings."""
    if not config.forwarding:
        return BLOCK_KEEPERS
    from stream_node.forwarding.storing import KEEPERS

    return (*BLOCK_KEEPERS, *KEEPERS)


def chain_address(config: Config) -> Address:
    return stream_address(STREAM_PREFIX + config.block_chain, 0)

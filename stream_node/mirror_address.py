"""Finds out by which address other nodes reach this node, so that a former source can follow it."""

from __future__ import annotations

from collections.abc import Sequence

from ockam.address import split_host_port
from stream_node.config import Config

ANY_HOSTS = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")
"""The hosts of a listener that takes connections at every address of its machine. No other node can reach them."""


def own_address(config: Config, addresses: Sequence[str]) -> str | None:
    """Returns the `host:port` at which other nodes reach this node: the setting `mirror_address`, else the first
    address at which it listens. Returns None if it listens at every address of its machine.

    addresses: the `host:port` texts at which the node listens.
    """
    if config.mirror_address is not None:
        return config.mirror_address
    return next((address for address in addresses if split_host_port(address)[0] not in ANY_HOSTS), None)

"""Finds out by which address other nodes reach this node, so that a former source can follow it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address

from ockam.actors.address import split_host_port
from stream_node.node.config import Config


def is_any_host(host: str) -> bool:
    """Whether a listener at this host takes connections at every address of its machine, so that it names no
    address."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        # The system also knows short forms, such as "0".
        return socket.inet_aton(host) == bytes(4)
    except OSError:
        return False


def own_address(config: Config, addresses: Sequence[str]) -> str | None:
    """Returns the `host:port` at which other nodes reach this node; None if it listens at every address of its machine.
    It is the setting `mirror_address`, else the first of the addresses at which the node listens."""
    if config.mirror_address is not None:
        return config.mirror_address
    return next((address for address in addresses if not is_any_host(split_host_port(address)[0])), None)

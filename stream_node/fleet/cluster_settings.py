"""Checks the settings of a member of a cluster, and finds the address at which other nodes reach this one."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from ockam.actors.address import complete_address, split_host_port
from ockam.errors import InvalidAddress
from stream_node.node.config import Config, ConfigError

NAME_CHARS_MAX = 64
_MEMBER_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}(-w[0-9]{{2}})?")
"""Matches the name of a member: the setting `cluster`, and the name of the worker if the member is one of several."""


def check_cluster(config: Config) -> None:
    """Raises ConfigError if the settings of the cluster do not fit together."""
    if config.cluster is None:
        if config.cluster_address is not None:
            raise ConfigError("cluster_address: it needs the setting cluster, the name of this node in its cluster")
        return
    if config.database is None:
        raise ConfigError("cluster: its members need a database that they share; set database to a PostgreSQL URL")
    if not _MEMBER_NAME.fullmatch(config.cluster):
        raise ConfigError(
            f"cluster: the name of this node in its cluster has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' and '.'"
        )
    setting = "listen" if config.cluster_address is None else "cluster_address"
    address = config.cluster_address or config.listen
    try:
        host, port = split_host_port(complete_address(address))
    except InvalidAddress as error:
        raise ConfigError(f"{setting}: {error}") from error
    # The members read this address from the tables, so it must mean something on their machines.
    if is_any_host(host):
        raise ConfigError(
            f"cluster_address: other nodes of the cluster cannot reach this one at {address}; set cluster_address to "
            "the HOST:PORT at which they reach it"
        )
    if setting == "cluster_address" and not port:
        raise ConfigError(f"cluster_address: no node can be reached at port 0 ({address})")


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

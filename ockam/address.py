"""Addresses and routes: where a message goes and where its answer goes.

An address is a type and an opaque value; a route is a tuple of addresses, the next hop first. Values are not
interpreted here, because a reply must carry a peer's address back untouched, UTF-8 or not. Nothing is looked up here.

Text form, for people and for the command line: `stream_service`, `1#127.0.0.1:4000`, and routes joined by `=>`.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from ockam.errors import InvalidAddress

LOCAL = 0
"""Address type of a worker on the node that reads the route (facts/ockam.md §1)."""
TCP = 1
"""Address type of a TCP peer; the value is `host:port` as text."""
DEFAULT_PORT = 4000
"""The port at which a node listens by default."""
ADDRESS_TYPE_MAX = 255
_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NO_HOST = re.compile(r"[/@\s]")
"""A host with such a character comes from a URL or from a slip. It is refused here: the error of a resolver would not
say what is wrong."""
SHOWN_BYTES_MAX = 200
"""An address that a peer has made up is cut to this many bytes in a log line."""


class Address(NamedTuple):
    """One hop: `type` 0..255 and `value`, opaque bytes."""

    type: int
    value: bytes

    def __str__(self) -> str:
        text = self.value.decode("utf-8", "backslashreplace")
        return text if self.type == LOCAL else f"{self.type}#{text}"


Route: TypeAlias = tuple[Address, ...]
"""Hops, the next one first."""


def local(name: str | bytes) -> Address:
    """The address of a worker on this node."""
    return Address(LOCAL, name.encode() if isinstance(name, str) else name)


def tcp(destination: str) -> Address:
    """The address of a TCP peer, from `host:port`. Raises InvalidAddress."""
    split_host_port(destination)
    return Address(TCP, destination.encode())


def complete_address(text: str) -> str:
    """The `host:port` that a person means; a host alone gets DEFAULT_PORT. Raises InvalidAddress."""
    from ipaddress import IPv6Address, ip_address

    text = text.strip()
    try:
        is_ipv6 = isinstance(ip_address(text.strip("[]")), IPv6Address)
    except ValueError:
        is_ipv6 = False
    if is_ipv6:
        text = f"[{text.strip('[]')}]:{DEFAULT_PORT}"
    elif _HOST.fullmatch(text) and not text.isdigit():
        text = f"{text}:{DEFAULT_PORT}"
    split_host_port(text)
    return text


def split_host_port(text: str) -> tuple[str, int]:
    """The host and the port of `host:port`; an IPv6 host stands in brackets there. Raises InvalidAddress."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not host or _NO_HOST.search(host) or not is_port:
        raise InvalidAddress(f"{text!r} is not HOST:PORT (for example {_example(text)})")
    return host, int(port)


def _example(text: str) -> str:
    """The `host:port` that was probably meant: that of a URL, or the host of an address without a good port."""
    scheme, mark, rest = text.partition("://")
    place = (rest if mark else scheme).partition("/")[0].rpartition("@")[2]
    host, _, port = place.rpartition(":")
    if not host and not port.isdigit():
        host, port = port, ""
    if _NO_HOST.search(host):
        host = ""
    return f"{host or '127.0.0.1'}:{port if port.isdigit() and int(port) <= 65535 else DEFAULT_PORT}"


def parse_address(text: str) -> Address:
    """An address from its text form. Raises InvalidAddress."""
    head, mark, rest = text.strip().partition("#")
    if mark and head.isdigit():
        if int(head) > ADDRESS_TYPE_MAX:
            raise InvalidAddress(f"address type {head} is above {ADDRESS_TYPE_MAX}")
        return tcp(rest) if int(head) == TCP else Address(int(head), rest.encode())
    if not text.strip():
        raise InvalidAddress("an address is empty: write a worker's name or TYPE#VALUE")
    return local(text.strip())


def parse_route(text: str) -> Route:
    """A route from its text form, for example `1#127.0.0.1:4000 => stream_service`. Raises InvalidAddress."""
    return tuple(parse_address(part) for part in text.split("=>"))


def format_route(route: Route) -> str:
    """The text form of a route."""
    return " => ".join(map(str, route))


def shown(hop: Address) -> str:
    """An address as text for a log line, cut to SHOWN_BYTES_MAX."""
    return str(Address(hop.type, hop.value[:SHOWN_BYTES_MAX]))[:SHOWN_BYTES_MAX]

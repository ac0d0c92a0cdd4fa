"""Addresses and routes: their types, and the conversion to and from text. It does not resolve host names."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from ockam.errors import InvalidAddress

LOCAL = 0
"""The address type of a worker on the node that reads the route (facts/ockam.md §1)."""
TCP = 1
"""The address type of a TCP peer. The value is `host:port` as text."""
DEFAULT_PORT = 4000
"""The TCP port on which a node listens by default."""
ADDRESS_TYPE_MAX = 255
_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NO_HOST = re.compile(r"[/@\s\0]")
"""Matches a character that no host contains, for example the slash of a URL. A resolver's error would not name it."""
_HOST_CHARS_MAX = 255
"""No name of a host is longer (RFC 1035, section 2.3.4)."""
SHOWN_BYTES_MAX = 200


class Address(NamedTuple):
    """One hop of a route.

    type: the kind of hop, 0 to 255 (for example LOCAL or TCP).
    value: opaque bytes. A reply must return the address of a peer unchanged."""

    type: int
    value: bytes

    def __str__(self) -> str:
        text = self.value.decode("utf-8", "backslashreplace")
        return text if self.type == LOCAL else f"{self.type}#{text}"


Route: TypeAlias = tuple[Address, ...]
"""A route: the addresses of its hops. The first address is the next hop."""


def local(name: str | bytes) -> Address:
    """Returns the address of a worker on this node."""
    return Address(LOCAL, name.encode() if isinstance(name, str) else name)


def tcp(destination: str) -> Address:
    """Returns the address of the TCP peer at `host:port`. Raises InvalidAddress."""
    split_host_port(destination)
    return Address(TCP, destination.encode())


def complete_address(text: str) -> str:
    """Returns the `host:port` for a text that a person typed; a host alone gets DEFAULT_PORT. Raises InvalidAddress."""
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
    """Splits `host:port`. Removes the brackets around an IPv6 host. Raises InvalidAddress."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not _is_host(host) or not _is_port(port):
        raise InvalidAddress(f"{text!r} is not HOST:PORT (for example {_example(text)})")
    return host, int(port)


def _is_host(text: str) -> bool:
    # A peer can send a long text, for which the encoding takes long.
    if not 0 < len(text) <= _HOST_CHARS_MAX or _NO_HOST.search(text):
        return False
    try:
        # Python encodes every host like this before a look-up. That fails for `a..b` and for a part of 64 characters.
        text.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_port(text: str) -> bool:
    # `int` refuses some characters that `isdigit` accepts, such as `²`, and numbers with thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535


def _example(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    place = (rest if mark else scheme).partition("/")[0].rpartition("@")[2]
    host, _, port = place.rpartition(":")
    if not host and not port.isdigit():
        host, port = port, ""
    if not _is_host(host):
        host = ""
    return f"{host or '127.0.0.1'}:{port if _is_port(port) else DEFAULT_PORT}"


def parse_address(text: str) -> Address:
    """Parses the text form of an address, for example `stream_service` or `1#127.0.0.1:4000`. Raises InvalidAddress."""
    head, mark, rest = text.strip().partition("#")
    if mark and head.isascii() and head.isdigit():
        if len(head) > 3 or int(head) > ADDRESS_TYPE_MAX:
            raise InvalidAddress(f"address type {head} is above {ADDRESS_TYPE_MAX}")
        return tcp(rest) if int(head) == TCP else Address(int(head), rest.encode())
    if not text.strip():
        raise InvalidAddress("an address is empty: write a worker's name or TYPE#VALUE")
    return local(text.strip())


def parse_route(text: str) -> Route:
    """Parses the text form of a route, for example `1#127.0.0.1:4000 => stream_service`. Raises InvalidAddress."""
    return tuple(parse_address(part) for part in text.split("=>"))


def format_route(route: Route) -> str:
    """Returns the text form of a route."""
    return " => ".join(map(str, route))


def shown(hop: Address) -> str:
    return str(Address(hop.type, hop.value[:SHOWN_BYTES_MAX]))[:SHOWN_BYTES_MAX]

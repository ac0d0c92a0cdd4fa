"""The token by which a Spark process proves its name to a node. Like `node_client`, it uses only the standard library.

The option `token` names the place of a token and never has its text: Spark shows options in its plans, logs and UI.
Programs with this project installed use `ockam.identity.token`. docs/wire.md has the bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from spark_export.errors import BadAnswer, OptionError, TokenRefused
from spark_export.source.node_wire import Answer, BareReader, text, uint

TOKEN_OPTION = "token"
ADDRESS = b"node_authenticate"
PROTOCOL = "node/authenticate/1"
FORM = re.compile("sntok_[0-9a-f]{64}")
FILE_CHARACTERS_MAX = 4096


@dataclass(frozen=True)
class NodeToken:
    """Where a token is: `env:NAME` or `file:PATH`. Each new connection reads the variable or file again."""

    place: str

    def request(self) -> bytes:
        """Returns the body of the request that proves the name. Raises OptionError without a token."""
        return uint(1) + text(self._read())

    def check_way(self, endpoint: str, host: str, is_encrypted: bool) -> None:
        """Raises TokenRefused if others could read a token on the way. host: the IP address of the other side."""
        if not is_encrypted and not _is_this_machine(host):
            raise TokenRefused(
                f"the token is not sent to {endpoint}: it is another machine, and the connection to it is not "
                "encrypted; set the option tlsCa"
            )

    def _read(self) -> str:
        kind, _, where = self.place.partition(":")
        if kind == "env":
            found = os.environ.get(where, "")
        else:
            try:
                with open(where, encoding="ascii", errors="replace") as opened:
                    found = opened.read(FILE_CHARACTERS_MAX)
            except OSError as error:
                raise OptionError(f"token {self.place}: {error}") from error
        if not FORM.fullmatch(found.strip()):
            what = "this process has no token there" if kind == "env" else "there is no token in this file"
            raise OptionError(f"token {self.place}: {what}; `stream-node token create` on the node makes one")
        return found.strip()


def token_of(find: Callable[[str], str | None]) -> NodeToken | None:
    """Returns the place of the token from the options, or None. Raises OptionError, which does not show the value,
    because the user could have written the token itself."""
    place = find(TOKEN_OPTION)
    if place is None:
        return None
    kind, colon, where = place.partition(":")
    if not colon or kind not in ("env", "file") or not where:
        raise OptionError(
            "token: say env:NAME or file:PATH, where each process finds the token; Spark would show the token itself "
            "in its plans"
        )
    return NodeToken(place)


def check_answer(endpoint: str, answer: Answer) -> None:
    """Raises TokenRefused if the node does not accept the token, and BadAnswer if it answers something else."""
    if answer.protocol != PROTOCOL:
        raise BadAnswer(f"{endpoint} answers {answer.protocol!r} to a token")
    reader = BareReader(answer.body)
    reader.uint()
    if reader.uint():
        reader.text()
        raise TokenRefused(f"{endpoint} does not accept the token: {reader.text()}")


def _is_this_machine(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback

"""Opens clients of a node for Spark's processes, and repeats failed calls for the time of `requestTimeoutMs`.

A ClientError becomes a SourceError in this module, and in no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import stream_client
from ockam.identity.tls import Tls
from ockam.identity.token import Token
from spark_export import errors
from spark_export.decode.options import text_at
from spark_export.source.plan import Place, StreamEnds
from stream_client import ClientError, Reconnect, blocking

T = TypeVar("T")

TLS_OPTIONS = ("tlsCa", "tlsCert", "tlsKey", "tlsServerName")
TOKEN_OPTION = "token"
SYSTEM = "system"
"""The value of `tlsCa` that stands for the authorities that the system trusts."""
PAUSE_S, PAUSE_S_MAX = 0.2, 2.0
"""The first pause before a repetition, and the longest pause, in seconds. Each pause is twice as long as the last."""
REQUEST_TIMEOUT_MS = 120_000
FAILOVER_S = 3.0
"""With several addresses, the seconds of silence after which the next address is tried."""

ERRORS: tuple[tuple[type[ClientError], type[errors.SourceError], str], ...] = (
    (stream_client.TlsFailed, errors.SourceTlsFailed, f"{{}} (here by the options {', '.join(TLS_OPTIONS)})"),
    (stream_client.TlsRequired, errors.SourceTlsFailed, f"{{}} (here by the options {', '.join(TLS_OPTIONS)})"),
    (stream_client.AuthenticationFailed, errors.TokenRefused, "{} (here by the options token and tlsCa)"),
    (stream_client.InvalidArgument, errors.OptionError, f"endpoint, token or {', '.join(TLS_OPTIONS)}: {{}}"),
    (stream_client.PushFailed, errors.SinkPushFailed, "{}"),
    (stream_client.StreamNotFound, errors.StreamMissing, "{}"),
    (stream_client.NodeUnreachable, errors.SourceUnreachable, "{}; see the option endpoint, and whether the node runs"),
)
"""Each row: a class of ClientErrors, the SourceError that replaces them, and its text. The first class that fits
counts."""

logger = logging.getLogger("stream_node.spark")


@dataclass(frozen=True)
class Way:
    """The checked options by which a process reaches a node, for reads and writes."""

    endpoint: str = "127.0.0.1:4000"
    tls: Tls | None = None
    token: Token | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000


class RetryBound:
    """The time within which a call is repeated: `bound_s` seconds since the beginning or the last progress.

    opened: the number of clients that were opened for the call. Each begins with another address of the endpoint.
    """

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self.opened = 0
        self.renew()

    def renew(self) -> None:
        self._end_s = time.monotonic() + self.bound_s
        self._pause_s = PAUSE_S
        self._is_first = True

    def wait(self, error: errors.SourceError) -> None:
        """Pauses before the next attempt. Raises `error` if no repetition can help, or if the time is over."""
        left_s = self._end_s - time.monotonic()
        if not isinstance(error, errors.SourceUnreachable) or isinstance(error, errors.SourceTlsFailed) or left_s <= 0:
            raise error
        if self._is_first:
            logger.warning("%s; trying again for %.0f s", error, left_s)
            self._is_first = False
        pause(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


@contextmanager
def connected(way: Way, bound: RetryBound | None = None) -> Iterator[blocking.StreamClient]:
    """Opens a client of the first address of the endpoint that can be reached. Raises SourceUnreachable when the time
    of `bound` is over (default: `request_timeout_s`), and other SourceErrors."""
    with mapped_errors(), ExitStack() as opened:
        yield _open(way, opened, bound or RetryBound(way.request_timeout_s))


def asked(way: Way, ask: Callable[[blocking.StreamClient], T]) -> T:
    """Returns what `ask` returns for a client; calls it again, with a new client, while the node cannot be reached."""
    bound = RetryBound(way.request_timeout_s)
    while True:
        try:
            with connected(way, bound) as client:
                return ask(client)
        except errors.SourceUnreachable as error:
            bound.wait(error)


def list_partitions(
    client: blocking.StreamClient, stream: str | None = None, takes: Callable[[str], bool] = lambda name: True
) -> list[StreamEnds]:
    """Returns the partitions of one stream (none if it does not exist) or of all streams, by name and partition.

    takes: whether a name is wanted. The node can have a million streams of which one is wanted.
    """
    found = []
    for info in client.list_streams(stream or ""):
        if stream not in (None, info.stream_name):
            # A longer name that begins with this name is sorted after this name.
            break
        if takes(info.stream_name):
            sizes = info.first_index, info.next_index, info.size_bytes
            found.append(StreamEnds(info.stream_name, info.partition, *sizes, info.created_us))
    return found


def find_partition(client: blocking.StreamClient, place: Place) -> StreamEnds | None:
    return next((each for each in list_partitions(client, place[0]) if each.partition == place[1]), None)


def saved_indexes(client: blocking.StreamClient, client_id: str) -> dict[Place, int]:
    return {
        (each.stream_name, each.partition): each.index for each in blocking.list_positions(client, client_id=client_id)
    }


@contextmanager
def mapped_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise source_error(error) from error


def source_error(error: ClientError) -> errors.SourceError:
    """Returns the SourceError for a ClientError. All errors after which a repetition can help are SourceUnreachable."""
    for kind, made, text in ERRORS:
        if isinstance(error, kind):
            return made(text.format(error))
    if error.retriable:
        return errors.SourceUnreachable(str(error))
    return (errors.NodeRefused if isinstance(error, stream_client.RequestRefused) else errors.BadAnswer)(str(error))


def tls_of(given: Mapping[str, str]) -> Tls | None:
    """Returns the options of TLS; None if tlsCa and tlsCert are absent. Raises OptionError."""
    ca, certificate, key, server_name = map(given.get, TLS_OPTIONS)
    if ca is None and certificate is None:
        if key is not None or server_name is not None:
            raise errors.OptionError(
                "tlsKey and tlsServerName have no effect without tlsCa or tlsCert; give one of these"
            )
        return None
    return Tls(None if ca == SYSTEM else ca, certificate, key, server_name)


def token_of(given: Mapping[str, str]) -> Token | None:
    """Returns the token of the options, or None. Raises OptionError, whose text never contains the value: a user may
    have given the token itself."""
    if TOKEN_OPTION not in given:
        return None
    kind, _, where = given[TOKEN_OPTION].partition(":")
    if kind not in ("env", "file") or not where:
        raise errors.OptionError(
            "token: say env:NAME or file:PATH, where each process finds the token; Spark would show the token itself "
            "in its plans"
        )
    return Token(variable=where) if kind == "env" else Token(file=where)


def pause(delay_s: float) -> None:
    threading.Event().wait(delay_s)


def _open(way: Way, opened: ExitStack, bound: RetryBound) -> blocking.StreamClient:
    endpoint = way.endpoint
    if endpoint.startswith(("env:", "file:")):
        endpoint = text_at(endpoint, f"endpoint {endpoint}")
    addresses = [each.strip() for each in endpoint.split(",") if each.strip()]
    give_up_s = way.request_timeout_s if len(addresses) == 1 else min(FAILOVER_S, way.request_timeout_s)
    first = bound.opened % max(1, len(addresses))
    bound.opened += 1
    while True:
        failed: errors.SourceError = errors.OptionError(
            f"endpoint {way.endpoint!r}: write it as host:port, such as 127.0.0.1:4000"
        )
        for address in addresses[first:] + addresses[:first]:
            client = blocking.connect(
                address,
                reconnect=Reconnect(give_up_s=give_up_s),
                answer_timeout_s=way.request_timeout_s,
                tls=way.tls,
                token=way.token,
            )
            try:
                with mapped_errors():
                    return opened.enter_context(client)
            except errors.SourceError as error:
                failed = error
        bound.wait(failed)

"""Opens clients of a node for Spark's processes, and repeats failed calls for the time of `requestTimeoutMs`.

A ClientError becomes a SourceError in this module, and in no other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import stream_client
from ockam.identity.tls import Tls
from ockam.identity.token import Token
from spark_export import errors
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
    """Opens a client of the first address of the endpoint that can be reached. Raises SourceErrors, and
    SourceUnreachable after `bound` (`request_timeout_s`)."""
    bound = bound or RetryBound(way.request_timeout_s)
    with mapped_errors(), ExitStack() as opened:
        yield _open(way, opened, bound)


def asked(way: Way, ask: Callable[[blocking.StreamClient], T]) -> T:
    """Returns what `ask` returns for a client; calls it again, with a new client, while the node cannot be reached."""
    bound = RetryBound(way.request_timeout_s)
    while True:
        try:
            with connected(way, bound) as client:
                return ask(client)
        except errors.SourceUnreachable as error:
            bound.wait(error)


def list_partitions(client: blocking.StreamClient, stream: str) -> list[StreamEnds]:
    """Returns all partitions of one stream in order; an empty list if the stream does not exist."""
    # A longer name that begins with this name is sorted after this name.
    return list(takewhile(lambda each: each.stream == stream, list_streams(client, stream)))


def find_partition(client: blocking.StreamClient, place: Place) -> StreamEnds | None:
    return next((each for each in list_partitions(client, place[0]) if each.partition == place[1]), None)


def list_streams(client: blocking.StreamClient, prefix: str = "") -> Iterator[StreamEnds]:
    """Yields the partitions of all streams whose name begins with `prefix`, ordered by name and partition."""
    for info in client.list_streams(prefix):
        place = info.stream_name, info.partition
        yield StreamEnds(*place, info.first_index, info.next_index, info.size_bytes, info.created_us)


@contextmanager
def mapped_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise source_error(error) from error


def source_error(error: ClientError) -> errors.SourceError:
    """Returns the SourceError for a ClientError. All errors after which a repetition can help are SourceUnreachable."""
    text = str(error)
    if isinstance(error, stream_client.TlsFailed | stream_client.TlsRequired):
        return errors.SourceTlsFailed(f"{text} (here by the options {', '.join(TLS_OPTIONS)})")
    if isinstance(error, stream_client.AuthenticationFailed):
        return errors.TokenRefused(f"{text} (here by the options {TOKEN_OPTION} and {TLS_OPTIONS[0]})")
    if isinstance(error, stream_client.InvalidArgument):
        return errors.OptionError(f"endpoint, {TOKEN_OPTION} or {', '.join(TLS_OPTIONS)}: {text}")
    if isinstance(error, stream_client.PushFailed):
        return errors.SinkPushFailed(text)
    if isinstance(error, stream_client.StreamNotFound):
        return errors.StreamMissing(text)
    if isinstance(error, stream_client.NodeUnreachable):
        return errors.SourceUnreachable(f"{text}; see the option endpoint, and whether the node runs")
    if error.retriable:
        return errors.SourceUnreachable(text)
    return (errors.NodeRefused if isinstance(error, stream_client.RequestRefused) else errors.BadAnswer)(text)


def find_endpoint(endpoint: str) -> str:
    """Returns an endpoint, perhaps from `env:NAME` or `file:PATH` of this process. Raises OptionError."""
    kind, separator, place = endpoint.partition(":")
    if kind == "env" and separator:
        value = os.environ.get(place)
        if not value:
            raise errors.OptionError(f"endpoint env:{place}: this process has no environment variable {place}")
        return value.strip()
    if kind == "file" and separator:
        try:
            return Path(place).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise errors.OptionError(f"endpoint file:{place}: {error}") from error
    return endpoint


def tls_of(find: Callable[[str], str | None]) -> Tls | None:
    """Returns the options of TLS; None if tlsCa and tlsCert are absent. Raises OptionError."""
    ca, certificate, key, server_name = map(find, TLS_OPTIONS)
    if ca is None and certificate is None:
        if key is not None or server_name is not None:
            raise errors.OptionError(
                "tlsKey and tlsServerName have no effect without tlsCa or tlsCert; give one of these"
            )
        return None
    return Tls(None if ca == SYSTEM else ca, certificate, key, server_name)


def token_of(find: Callable[[str], str | None]) -> Token | None:
    """Returns the token of the options, or None. Raises OptionError without the value: it may be a token itself."""
    place = find(TOKEN_OPTION)
    if place is None:
        return None
    kind, colon, where = place.partition(":")
    if not colon or kind not in ("env", "file") or not where:
        raise errors.OptionError(
            "token: say env:NAME or file:PATH, where each process finds the token; Spark would show the token itself "
            "in its plans"
        )
    return Token(variable=where) if kind == "env" else Token(file=where)


def pause(delay_s: float) -> None:
    threading.Event().wait(delay_s)


def _open(way: Way, opened: ExitStack, bound: RetryBound) -> blocking.StreamClient:
    addresses = [each.strip() for each in find_endpoint(way.endpoint).split(",") if each.strip()]
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

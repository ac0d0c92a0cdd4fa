"""Connects commands to a node, and finds streams on the node."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from stream_node.cli.options import GIVEN, RUNS, NodeOptions, RequestOptions, reaching, services_of
from stream_node.cli.output import tell
from stream_node.cli.values import CommandFailed

if TYPE_CHECKING or RUNS:
    import platformdirs
    import trio

    from ockam.protocol import Protocol
    from stream_client import (
        ClientError,
        NodeUnreachable,
        NotSupported,
        PartitionedStream,
        RequestRefused,
        Stream,
        StreamClient,
        StreamNotFound,
        TlsFailed,
        connect,
        stop_on_signals,
    )
    from stream_client.shell.base_shell import ANSWER_TIMEOUT_S
    from stream_node.cli.contexts import APPLICATION, Target

A = TypeVar("A")
Q = TypeVar("Q")
T = TypeVar("T")

NEWER_WAIT_S = 10.0
"""How long a command waits for a service that older nodes lack. A newer node answers within
`stream_storage.thread_runner.READ_S_MAX` or `stream_node.fleet.cluster.router.GATHER_S_MAX`, even if it is slow."""


def with_client(run: Callable[[StreamClient], Awaitable[None]], node: NodeOptions, *, waits: bool = False) -> None:
    """Runs an async function with a client of the chosen node. waits: the command runs until it is stopped, and
    reports lost connections. Raises ContextError, InvalidAddress, ClientError."""
    target = node.target()
    place = (target.address, *target.via)[-1]

    def on_link(error: ClientError | None) -> None:
        tell(f"{place} is back" if error is None else f"{place} is gone ({error}); waiting until it is back")

    async def main() -> None:
        for believes_note in (True, False):
            async with open_client(target, on_link if waits else None, believes_note=believes_note) as client:
                try:
                    return await run(client)
                except NotSupported:
                    # An old note can be wrong, so the second try ignores it. After an answer, `run` may have pushed.
                    if not believes_note or client.session.core.service_route.reached:
                        raise

    run_to_signal(main)


@asynccontextmanager
async def open_client(
    target: Target,
    on_link: Callable[[ClientError | None], None] | None = None,
    *,
    is_given: bool = True,
    believes_note: bool = True,
) -> AsyncIterator[StreamClient]:
    """Opens a client of the node `target`. Notes for later commands whether the node's stream service is plain, which
    means that it lacks our own protocols.

    is_given: whether the `RequestOptions` were given for this node; the target of a copy gets only --timeout.
    believes_note: whether a service that an earlier command has noted as plain is taken for plain without asking it."""
    given = GIVEN.get() if is_given else RequestOptions(timeout=GIVEN.get().timeout)
    services = services_of(target, given)
    note = note_of(target, services["service"])
    async with connect(
        target.address,
        answer_timeout_s=ANSWER_TIMEOUT_S if given.timeout is None else given.timeout,
        contact_timeout_s=given.contact_timeout_s,
        on_link=on_link,
        plain=believes_note and note.exists(),
        **services,
        **reaching(target, given),
    ) as client:
        try:
            yield client
        finally:
            has_extensions = client.session.core.service_route.has_extensions
            # Without a place for notes, each command asks the service anew.
            with suppress(OSError):
                if has_extensions:
                    note.unlink(missing_ok=True)
                elif has_extensions is False and not note.exists():
                    note.parent.mkdir(parents=True, exist_ok=True)
                    note.touch()


async def ask_newer(client: StreamClient, address: str, protocol: Protocol[Q, A], request: Q, what: str) -> A:
    """Asks a service that older nodes lack. Raises CommandFailed without an answer. what: for the error message."""
    with trio.move_on_after(NEWER_WAIT_S):
        return await client.session.ask(address, protocol, request)
    raise CommandFailed(f"this node does not {what}; it may be older")


def run_to_signal(main: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Runs an async function and returns its result. Ctrl-C, SIGTERM and SIGHUP cancel it, so that it can clean up;
    then `typer.Exit` is raised, with 128 plus the number of the signal. A second signal ends the program at once."""

    async def stoppable() -> T:
        async with stop_on_signals() as stopped:
            result = await main(*arguments)
        if stopped.signal is not None:
            raise typer.Exit(128 + stopped.signal)
        return result

    return trio.run(stoppable)


async def check_contact(target: Target) -> None:
    """Checks that the first node of the route forwards to the further ones. Raises ClientError if it does not.
    Commands with a block client call this first, because a block client repeats a failed connect without an error.
    The check also succeeds if no program listens at the address of the first node."""
    patience_s = GIVEN.get().contact_timeout_s
    is_there = False
    try:
        async with connect(target.address, contact_timeout_s=patience_s, **reaching(target)) as client:
            is_there = True
            await client.reached()
    except NodeUnreachable as error:
        # The client itself waits for a first node that is not there yet. A failed TLS handshake, or a later node of the
        # route that cannot be reached, is an error now.
        if is_there or isinstance(error, TlsFailed):
            raise


async def open_partition(client: StreamClient, name: str, partition: int) -> Stream:
    """Returns the partition to push to. Creates only a missing partition 0: further partitions would change to which
    partition a key belongs. Raises StreamNotFound if another partition is missing."""
    if partition == 0:
        return await client.create(name)
    try:
        return (await get_partitions(client, name, partition))[0]
    except RequestRefused:
        # The peer does not list streams, but the answer to a creation tells the route of a partition.
        return (await client.create_partitioned(name, partition + 1)).partitions[partition]
    except StreamNotFound as error:
        create = f"stream-node stream create {shlex.quote(name)} --partitions {partition + 1}"
        moves = ", and keys then belong to other partitions than before" if await client.find_stream(name) else ""
        raise StreamNotFound(f"{error}. A push makes no such partition; `{create}` does{moves}") from None


async def open_source(client: StreamClient, name: str, partition: int | None) -> PartitionedStream:
    try:
        if partition is None:
            return await client.get_stream(name)
        return PartitionedStream(await get_partitions(client, name, partition))
    except RequestRefused:
        # For a peer that does not list its streams, partition 0 counts as the only one.
        number = partition or 0
        return PartitionedStream([(await client.create_partitioned(name, number + 1)).partitions[number]])


async def open_target(client: StreamClient, name: str) -> PartitionedStream:
    # The answer to a create shows whether the service is a stream node. Then the stream can have more partitions.
    with suppress(RequestRefused):
        if found := await client.find_stream(name):
            return found
    return await client.create_partitioned(name, 1)


async def get_partitions(client: StreamClient, name: str, partition: int | None) -> list[Stream]:
    found: PartitionedStream = await client.get_stream(name)
    if partition is None:
        return list(found.partitions)
    chosen = [each for each in found.partitions if each.partition == partition]
    if not chosen:
        there = [each.partition for each in found.partitions]
        noun = "partition" if len(there) == 1 else "partitions"
        *others, last = (f"{first} to {end}" if first < end else str(first) for first, end in ranges_of(there))
        has = f"{', '.join(others)} and {last}" if others else last
        raise StreamNotFound(f"stream {name!r} has no partition {partition}: it has {noun} {has}")
    return chosen


def ranges_of(numbers: Collection[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def note_of(target: Target, service: str) -> Path:
    """Returns the path of the note about this stream service. The file exists if the service is plain."""
    place = "\n".join((target.address, *target.via, target.peer or "", service))
    return Path(platformdirs.user_cache_dir(APPLICATION), "plain-services", sha256(place.encode()).hexdigest())

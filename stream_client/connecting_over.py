"""`connect_over`: opens an async client over a stream that is connected to a node already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ockam.transport.wire_head import HEAD
from stream_client.client import StreamClient
from stream_client.core.client_core import ClientCore
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.secure import connection_of
from stream_client.session import ClientSession
from stream_client.shell.async_shell import AsyncShell, background_tasks
from stream_client.shell.base_shell import ANSWER_TIMEOUT_S, ShellSettings
from stream_client.shell.dial import Dialled

if TYPE_CHECKING:
    from anyio.abc import ByteStream


@asynccontextmanager
async def connect_over(
    stream: ByteStream,
    address: str,
    *,
    service: str = STREAM_SERVICE,
    index_service: str | None = None,
    answer_timeout_s: float | None = ANSWER_TIMEOUT_S,
) -> AsyncIterator[StreamClient]:
    """Opens a client over a stream that is connected to a node already. The end of the block closes both. The client
    does not connect again: after the end of the stream, every request fails with ConnectionLost.

    address: the name of the node in the texts of errors. The other parameters are those of `connect`.
    """
    core = ClientCore(
        via=(),
        service=service,
        index_service=index_service,
        asks_route=False,
        connection=connection_of(None, (), "head"),
    )
    shell = AsyncShell(core, ShellSettings(address))
    async with background_tasks() as tasks:
        shell.start(tasks, Dialled(stream, HEAD))
        try:
            yield StreamClient(ClientSession(address, core, shell, answer_timeout_s))
        finally:
            await shell.close()

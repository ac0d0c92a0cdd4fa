"""Serves by several worker processes, which one supervisor starts and stops: `stream-node serve --workers NUMBER`."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import structlog
import typer

from stream_node.cli.output import tell
from stream_node.node.logs import REPEATED

if TYPE_CHECKING:
    from stream_node.node.config import Config


def supervise(settings: Config, arguments: Sequence[str], *, has_file: bool, as_json: bool) -> None:
    """Runs the workers of a node until this process is told to stop. Raises ConfigError, StorageError, CannotListen.
    arguments: the command line, which the workers get too. has_file: whether it names a file of settings."""
    import trio

    from stream_node.cli.node.serve import has_terminal, obeyed_signals, report_listening
    from stream_node.fleet.cluster_services import check_cluster
    from stream_node.fleet.supervisor import NodeEnd, Supervisor
    from stream_node.fleet.worker_directory import check_workers, lock_directory, make_databases
    from stream_node.fleet.worker_place import check_own_addresses
    from stream_node.node.config_sources import check_start
    from stream_node.node.notify import Notifier
    from stream_node.node.reloading import may_have_files

    # A wrong setting is reported once here, and not by each worker.
    check_cluster(settings)
    check_own_addresses(settings)
    check_start(settings)

    notifier = Notifier()
    had_terminal = has_terminal()
    # The workers answer this question in the same way: they have a notifier if this process has one.
    can_reload = may_have_files(settings, has_file=has_file, notifier=notifier)

    async def run() -> NodeEnd:
        lock = await lock_directory(settings)
        try:
            # Another supervisor may have made the databases before it gave the lock back.
            check_workers(settings)
            supervisor = Supervisor(settings, lock, arguments, notifier)
            # A start that fails before this leaves no database, so the next one may have another number of workers.
            try:
                await trio.to_thread.run_sync(make_databases, settings)
                return await run_locked(supervisor)
            finally:
                supervisor.close()
        finally:
            lock.release(clean=True)

    async def run_locked(supervisor: Supervisor) -> NodeEnd:
        def report_ready() -> None:
            report_listening(settings, supervisor.addresses, [], as_json)
            notifier.ready()

        async def obey(signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
            async for number in signals:
                # As of a node with one process: a closed terminal ends it, a service manager makes it read files.
                if number == signal.SIGHUP and can_reload and has_terminal() == had_terminal:
                    nursery.start_soon(supervisor.reload)
                else:
                    notifier.stopping()
                    supervisor.stop()

        with trio.open_signal_receiver(*obeyed_signals()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(obey, signals, nursery)
                nursery.start_soon(notifier.report_alive)
                end = await supervisor.run(report_ready)
                nursery.cancel_scope.cancel()
        return end

    end = trio.run(run)
    REPEATED.tell(structlog.get_logger(__name__), is_end=True)
    if end.reason is not None:
        tell(end.reason)
    if end.code:
        raise typer.Exit(end.code)

"""The command `stream-node serve`: runs a node in this process, or in several workers, which one supervisor starts."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from stream_node.cli.options import ConfigOption, ForwardOption, ListenOption, LogLevelOption, flags_of
from stream_node.cli.output import say_json, say_text, tell
from stream_node.node.log_writer import write_waiting_lines

if TYPE_CHECKING:
    import trio

    from stream_node.node.config import Config

GC_OBJECTS = 20_000


class ServeOptions(NamedTuple):
    config: ConfigOption = None
    data_dir: Annotated[str | None, "The folder of the database."] = None
    database: Annotated[str | None, "postgresql://USER@HOST:PORT/NAME", "A PostgreSQL database for the streams."] = None
    cluster: Annotated[str | None, "NAME", "The name of this node in its cluster."] = None
    workers: Annotated[int | None, "NUMBER", "The number of processes, to use several cores."] = None
    worker: Annotated[
        list[str] | None, "MODULE:CLASS@ADDRESS", "Run a worker of your own on the node. May be repeated."
    ] = None
    listen: ListenOption = None
    http: Annotated[
        list[str] | None, "HOST:PORT", "Listen for HTTP, too. Port 0 picks a free port. May be repeated."
    ] = None
    grpc: Annotated[
        list[str] | None,
        "HOST:PORT[/SERVICES]",
        "Listen for block nodes and their peers over gRPC, too. /publish serves publishers only, "
        "/subscribe+status readers. May be repeated.",
    ] = None
    allow_forward: ForwardOption = None
    log_level: LogLevelOption = None
    access_rules: Annotated[str | None, "The TOML file with the rules: who may do what."] = None
    insecure: Annotated[bool | None, "Listen beyond this machine without TLS or rules."] = None
    migrate: Annotated[
        bool | None,
        typer.Option("--migrate/--no-migrate"),
        "Bring a database of an earlier version up to date, or refuse.",
    ] = None


def serve(
    options: ServeOptions,
    as_json: Annotated[bool, typer.Option("--json"), "Print the line in JSON, also at a terminal."] = False,
) -> None:
    """Serve streams until SIGTERM, SIGINT or SIGHUP. Then confirm all committed messages and stop.

    A node with a file of settings, with TLS or with rules does not stop on SIGHUP unless its terminal was closed. It
    reads its settings, certificates and rules again, and opens its audit log again.

    The command prints one line when it listens: text at a terminal, otherwise JSON. Log lines go to stderr in the
    same format.

    Example: stream-node serve --data-dir ./data --listen 127.0.0.1:4000
    """
    _leave_out_modules()
    import trio

    from stream_node.fleet.worker_directory import check_workers
    from stream_node.fleet.worker_place import own_settings, take_place
    from stream_node.node.config_sources import load_effective
    from stream_node.node.day_log import log_started
    from stream_node.node.logs import configure_logs
    from stream_node.node.notify import Notifier
    from stream_node.node.reloading import Reloading
    from stream_node.node.server import Server

    flags = flags_of(options)
    place = take_place()
    effective, origins = load_effective(flags, file=options.config)
    settings = own_settings(effective, place)
    # A supervisor need not count repeated log events: it logs few, because its pauses before restarts of workers grow.
    configure_logs(settings.log_level, counts_repeated=place is not None or settings.workers == 1)
    if place is None:
        check_workers(settings)
    if place is None and settings.workers > 1:
        supervise(settings, sys.argv[1:], has_file=options.config is not None, as_json=as_json)
        return
    notifier = Notifier()
    server = Server(settings, notifier, place)
    server.abandon = end_at_once
    reloading = Reloading(server, flags, options.config, notifier)
    # Messages form no reference cycles, so the garbage collector finds little, and takes an eighth of a node's time.
    # `freeze` exempts the imported modules, which stay in memory anyway.
    gc.set_threshold(GC_OBJECTS, 20, 20)
    gc.freeze()

    async def end_with_supervisor(pipe: int) -> None:
        await trio.lowlevel.wait_readable(pipe)
        server.stop()

    async def run() -> None:
        async with trio.open_nursery() as others:
            await others.start(_obey_signals, others, lambda: reloading.has_files, reloading.reload, server.stop)
            if place is not None:
                # This pipe closes when the supervisor ends.
                others.start_soon(end_with_supervisor, place.supervisor)
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve)
                # A supervisor watches a worker from the worker's first report on. So `ready` comes before the report
                # that the worker listens.
                notifier.ready()
                if place is None:
                    report_listening(settings, server.addresses, server.http, as_json, server.grpc)
                else:
                    place.report_listening()
                log_started(origins, server.addresses, server.http, server.grpc)
            others.cancel_scope.cancel()

    trio.run(run)
    end_at_once()


class _LoadedAtUse(ModuleType):
    """Stands for a module until a name in it is used. `importlib.util.LazyLoader` loads it at its second import."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _leave_out_modules() -> None:
    """Leaves out modules that a node may never use. This saves 11 MB and a fifth of the time of the node's start."""
    # structlog imports rich, for tracebacks in colors, and a module for greenlets, if they are installed.
    for name in ("rich", "structlog._greenlets"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # trio, SQLAlchemy and structlog import these for features that a node may never use.
    for name in ("asyncio", "idna", "importlib.metadata", "ssl", "zstandard"):
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module = _LoadedAtUse(name)
            module.__spec__ = spec
            # An import that finds the module here does not make it an attribute of its package.
            package, _, own_name = name.rpartition(".")
            if package:
                setattr(sys.modules[package], own_name, module)
    # SQLAlchemy takes this function of asyncio when it is imported.
    sys.modules["asyncio"].__dict__.setdefault("iscoroutine", inspect.iscoroutine)


def end_at_once(code: int = 0) -> NoReturn:
    """Ends this process at once, with all files closed. Python would free all objects first: for 100,000 streams that
    takes ten seconds. And if the process can open no file, the C library aborts it when Python ends its threads."""
    write_waiting_lines()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _obey_signals(
    nursery: trio.Nursery,
    can_reload: Callable[[], bool],
    reload: Callable[[], Awaitable[None]],
    stop: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    import trio

    had_terminal = has_terminal()
    obeyed = [signal.SIGTERM, signal.SIGINT]
    # A closed terminal sends SIGHUP, which would end the process without draining it. A node started with `nohup`
    # ignores SIGHUP, and must keep ignoring it. To a node without a terminal, a service manager sends SIGHUP to make it
    # read its files again.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        obeyed.append(signal.SIGHUP)
    else:
        import structlog

        structlog.get_logger(__name__).warning(
            "hang_up_ignored",
            reason="the node was started with SIGHUP ignored, as nohup does: it reads its files again at a start only",
        )
    with trio.open_signal_receiver(*obeyed) as signals:
        task_status.started()
        async for number in signals:
            # A terminal that is closed sends SIGHUP too, and the node must not go on without it.
            if number == signal.SIGHUP and has_terminal() == had_terminal and can_reload():
                nursery.start_soon(reload)
            else:
                stop()


def has_terminal() -> bool:
    try:
        os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def report_listening(
    settings: Config, addresses: list[str], http: list[str], as_json: bool, grpc: Sequence[str] = ()
) -> None:
    from stream_node.node.identity.access import lacking
    from stream_node.node.identity.tls_settings import find_certificate_sha384, tls_mode, tls_text

    sha384 = find_certificate_sha384(settings) if grpc else None
    sources: dict[str, str] = {}
    if settings.backfill_block_node_sources:
        from block_node.backfill.settings import describe_sources

        sources = describe_sources(settings.backfill_block_node_sources)
    line: dict[str, object] = {"event": "listening", "addresses": addresses, "pid": os.getpid()}
    others = {"http": http, "grpc": list(grpc), "certificate_sha384": sha384, "backfill_sources": sources}
    line |= {name: value for name, value in others.items() if value}
    line |= {"data_dir": settings.data_dir, "tls": tls_mode(settings)}
    lines = [f"listening at {' and '.join(addresses)}, with the data in {settings.data_dir}; Ctrl-C stops it"]
    if http:
        scheme = "http" if settings.tls_certificate is None else "https"
        lines.append(f"HTTP is at {' and '.join(f'{scheme}://{each}' for each in http)}")
    if grpc:
        lines.append(f"gRPC is at {' and '.join(grpc)}")
    if sha384 is not None:
        lines.append(f"the SHA-384 of the certificate, for block-nodes.json, is {sha384}")
    if settings.tls_certificate is not None:
        lines.append(f"TLS is {tls_text(settings)}")
    lines += [f"backfill fetches from {name} by {protocol}" for name, protocol in sources.items()]
    missing = lacking(settings)
    if missing is not None:
        line["insecure"] = missing
        lines.append(f"INSECURE: {missing}")
    say_json(line) if as_json or not sys.stdout.isatty() else say_text(lines)


def supervise(settings: Config, arguments: Sequence[str], *, has_file: bool, as_json: bool) -> None:
    """Runs the workers of a node until this process is told to stop. arguments: the command line, also for the workers.
    has_file: whether it names a file of settings. Raises ConfigError, StorageError, CannotListen."""
    import trio

    from stream_node.fleet.supervisor import NodeEnd, Supervisor
    from stream_node.fleet.worker_directory import check_workers, lock_directory, make_databases
    from stream_node.fleet.worker_place import check_own_addresses
    from stream_node.node.config_sources import check_cluster, check_start
    from stream_node.node.notify import Notifier
    from stream_node.node.reloading import may_have_files

    # A wrong setting is reported once here, and not by each worker.
    check_cluster(settings)
    check_own_addresses(settings)
    check_start(settings)

    notifier = Notifier()
    # Each worker decides in the same way whether it can reload: it has a notifier if this process has one.
    can_reload = may_have_files(settings, has_file=has_file, notifier=notifier)

    async def run() -> NodeEnd:
        def report_ready() -> None:
            report_listening(settings, supervisor.addresses, [], as_json)
            notifier.ready()

        def stop() -> None:
            notifier.stopping()
            supervisor.stop()

        lock = await lock_directory(settings)
        try:
            # Another supervisor may have made the databases before it gave the lock back.
            check_workers(settings)
            with closing(Supervisor(settings, lock, arguments, notifier)) as supervisor:
                # A start that fails before this step leaves no database: the next one may have more or fewer workers.
                await trio.to_thread.run_sync(make_databases, settings)
                async with trio.open_nursery() as nursery:
                    await nursery.start(_obey_signals, nursery, lambda: can_reload, supervisor.reload, stop)
                    nursery.start_soon(notifier.report_alive)
                    end = await supervisor.run(report_ready)
                    nursery.cancel_scope.cancel()
                return end
        finally:
            lock.release(clean=True)

    end = trio.run(run)
    if end.reason is not None:
        tell(end.reason)
    if end.code:
        end_at_once(end.code)

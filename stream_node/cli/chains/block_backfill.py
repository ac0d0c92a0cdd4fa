"""The commands `stream-node block backfill status|run|sources`: show and start the fetching of missing blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.client import with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions
from stream_node.cli.output import ProgressLine, columns, counted, say
from stream_node.cli.values import CommandFailed

if TYPE_CHECKING or RUNS:
    import msgspec
    import trio

    from block_node.backfill.protocol import BACKFILL, BackfillAsk, BackfillReport, BackfillSource
    from stream_client import StreamClient

STATES = ("idle", "running", "error", "off")
POLL_S = 0.25
GAPS_SHOWN = 10


def status(
    node: NodeOptions = ANY_NODE,
    metrics: Annotated[bool, "Print the figures in the text format of Prometheus."] = False,
) -> None:
    """Print which blocks are missing, how many are being fetched, and how many were fetched since the node started.

    Example: stream-node block backfill status --json
    """

    async def main(client: StreamClient) -> None:
        answer = await _ask(client)
        if metrics:
            from block_node.backfill.metrics import to_prometheus

            typer.echo(to_prometheus(answer), nl=False)
        else:
            say(_report(answer), _lines(answer))

    with_client(main, node)


def run(
    node: NodeOptions = ANY_NODE,
    give_up: Annotated[
        float | None, typer.Option(min=0), "Fail if blocks are still being fetched after this many seconds."
    ] = None,
) -> None:
    """Search for missing blocks now, and wait until they are stored. The exit code is 1 if some cannot be fetched, if
    no source says which blocks there are, or if a source has another chain.

    Example: stream-node block backfill run --give-up 60
    """

    async def main(client: StreamClient) -> None:
        answer = before = await _ask(client, begin=True)
        if STATES[before.state] == "off":
            raise CommandFailed("this node has no sources; set backfill_block_node_sources")
        with ProgressLine() as progress, trio.move_on_after(inf if give_up is None else give_up):
            # The node fetches by itself; the command only asks how far it has come.
            while STATES[answer.state] == "running":
                await trio.sleep(POLL_S)
                answer = await _ask(client)
                stored = answer.blocks_stored - before.blocks_stored
                progress.count("Backfill", stored, stored + answer.queue)
        stored = answer.blocks_stored - before.blocks_stored
        say(_report(answer) | {"stored_now": stored}, f"{counted(stored, 'block')} stored, {_missing(answer)}")
        if STATES[answer.state] == "running":
            raise CommandFailed(f"not done after {give_up:g} s: {_missing(answer)}; {_problem(answer)}")
        if answer.missing or answer.is_unknown:
            raise CommandFailed(f"{_missing(answer)}: {_problem(answer)}")
        _check_agreement(answer)

    with_client(main, node)


async def sources(client: StreamClient) -> None:
    """List the nodes from which missing blocks are fetched, with their blocks, latency and failures. The exit code is 1
    if one of them has another chain.

    Example: stream-node block backfill sources
    """
    answer = await _ask(client)
    titles = ("source", "priority", "has", "fetched", "latency", "failures", "left alone", "last error")
    report = {"sources": list(map(_source, answer.sources)), "disagreements": answer.disagreements}
    say(report, columns([titles, *map(_row, answer.sources)]))
    _check_agreement(answer)


async def _ask(client: StreamClient, *, begin: bool = False) -> BackfillReport:
    return await client.session.ask("block_backfill", BACKFILL, BackfillAsk(1, begin))


def _missing(answer: BackfillReport) -> str:
    if not answer.is_unknown:
        return f"{answer.missing:,} missing"
    return f"at least {answer.missing:,} missing" if answer.missing else "unknown how many are missing"


def _problem(answer: BackfillReport) -> str:
    problems = (f"{source.name}: {source.last_error}" for source in answer.sources if source.last_error)
    return answer.problem or next(problems, "no source has them")


def _check_agreement(answer: BackfillReport) -> None:
    if answer.disagreements:
        raise CommandFailed(f"a source has another chain: {'; '.join(answer.disagreements)}")


def _report(answer: BackfillReport) -> dict[str, Any]:
    counters = ("scans", "runs", "gaps_detected", "blocks_fetched", "blocks_stored", "fetched_bytes", "fetch_errors")
    report: dict[str, Any] = {"state": STATES[answer.state], "queue": answer.queue, "missing": answer.known_missing}
    report["gaps"] = msgspec.to_builtins(answer.gaps)
    report |= {"problem": answer.problem or None, "disagreements": answer.disagreements}
    report |= {"held_bytes": answer.held_bytes, "under_way": answer.under_way}
    report |= {"eta_s": _seconds(answer), "newest_known": answer.newest_known}
    report |= {name: getattr(answer, name) for name in (*counters, "persistence_failures", "given_up")}
    return report


def _lines(answer: BackfillReport) -> Iterator[str]:
    yield f"{STATES[answer.state]}: {answer.queue:,} being fetched, {_missing(answer)}"
    for problem in (answer.problem, *answer.disagreements):
        if problem:
            yield f"  {problem}"
    for gap in answer.gaps[:GAPS_SHOWN]:
        yield f"  {gap.first_block} to {gap.last_block}{' (newest)' if gap.live_tail else ''}"
    if len(answer.gaps) > GAPS_SHOWN:
        yield f"  and {len(answer.gaps) - GAPS_SHOWN:,} more"
    if (eta_s := _seconds(answer)) is not None:
        yield f"done in about {eta_s:,.0f} s"
    fetched = f"{counted(answer.blocks_fetched, 'block')} ({answer.fetched_bytes:,} bytes) fetched"
    yield f"{fetched}, {answer.blocks_stored:,} stored, {counted(answer.fetch_errors, 'error')}"


def _seconds(answer: BackfillReport) -> float | None:
    return None if answer.eta_ms is None else answer.eta_ms / 1_000


def _source(source: BackfillSource) -> dict[str, Any]:
    report: dict[str, Any] = {"source": source.name, "priority": source.priority}
    report |= {"first_block": source.first_block, "last_block": source.last_block, "ranges": source.ranges}
    report |= {"blocks": source.blocks, "bytes": source.size_bytes}
    report["latency_s"] = None if source.latency_us is None else source.latency_us / 1e6
    report |= {"failures": source.failures, "errors": source.errors, "backoff_s": source.backoff_ms / 1_000}
    return report | {"last_error": source.last_error or None}


def _row(source: BackfillSource) -> tuple[str, ...]:
    has = "nothing known" if source.first_block is None else f"{source.first_block} to {source.last_block}"
    latency = "" if source.latency_us is None else f"{source.latency_us / 1e3:.1f} ms"
    alone = f"{source.backoff_ms / 1e3:.0f} s" if source.backoff_ms else ""
    fetched = f"{source.blocks:,}"
    return source.name, str(source.priority), has, fetched, latency, str(source.failures), alone, source.last_error

"""Finds the present troubles of each part of the node. The overview shows them first, and the metrics count them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stream_node.care.patience import Patience
from stream_node.care.trouble import Texts, Trouble, TroubleKind
from stream_node.doors.dashboard.history import Point, Silent
from stream_node.doors.dashboard.listing import Beyond, ConsumerLag, ConsumerProgress
from stream_node.doors.dashboard.rendering import duration, link, number, size
from stream_node.fleet.worker_place import shares_shards
from stream_node.node.identity.endings import Ending
from stream_node.node.parts import NodeParts

ENDS_S, ENDS_BAD_S = 14 * 86_400.0, 86_400.0
"""How long before its end a certificate or token is a warning, or bad; at most 1/5, 1/20, of its life."""
SLOW_COMMIT_MS = 1_000.0
"""A disk is slow if the commits take this long. An ordinary commit takes less than ten milliseconds."""
RETENTION_LAG_S = 60.0
OWNER_WAIT_S = 5.0
"""A shard without an owner is in trouble after this time, in which other members take those of a dead member."""


def of_database(parts: NodeParts, unread: str | None) -> Iterator[Trouble]:
    """Yields the trouble of the database, if any. unread: why it could not be read just now; None if it could."""
    condition, runner = parts.condition, parts.runner
    failure = parts.services.trials.failure
    # At most one of these is reported: the first that applies explains those below it.
    if not runner.is_writing:
        reason = runner.statistics().failure or "no reason is known"
        yield Trouble(
            "not_writing",
            f"Syncing to the disk failed, and nothing is stored any more: {reason}",
            "Look at the disk and at the log line writing_stopped, then restart the node. Confirmed messages are safe.",
        )
    elif unread is not None and not condition.is_draining:
        yield Trouble(
            "not_reading",
            f"The database does not answer: {unread}",
            "Look at the database server, or at the disk with stream-node doctor. The node goes on by itself; until "
            "then, the consumers are shown as they were.",
        )
    elif failure is not None and not condition.refusing_pushes:
        yield Trouble(
            "push_failed",
            f"Pushes are not stored: {failure}",
            "Look at the disk with stream-node doctor. The node tries a write each second; a success ends this line.",
        )


def of_disk(parts: NodeParts, point: Point | None) -> Iterator[Trouble]:
    condition, counters = parts.condition, parts.services.directory.counters
    free, least = condition.free_disk_bytes, parts.config.free_disk_bytes_min
    if condition.refusing_pushes and free is not None:
        ballast = " and the ballast, given up for deletes and saves" if condition.needed_disk_bytes > least else ""
        yield Trouble(
            "disk_full",
            f"The disk is full: {size(free)} are free, and pushes need {size(condition.needed_disk_bytes)} "
            f"(free_disk_bytes_min{ballast}), so the node refuses them",
            "Make room on the disk, delete old messages, or set a retention. Pushes go on by themselves then.",
            link("/streams", order="size"),
            "The largest streams",
        )
    elif free is not None and least and free < 2 * least:
        yield Trouble(
            "disk_nearly_full",
            f"The disk is nearly full: {size(free)} are free, and below {size(least)} pushes are refused",
            "Make room on the disk, or set a retention.",
            link("/streams", order="size"),
            "The largest streams",
        )
    # The troubles below are independent of each other.
    if condition.disk_failure is not None:
        yield Trouble(
            "disk_unknown",
            f"The free space of the disk is unknown: {condition.disk_failure}",
            "Look at the disk. Until then, pushes are neither refused nor allowed by its free space.",
        )
    if point is not None and point.commit_p99_ms is not None and point.commit_p99_ms > SLOW_COMMIT_MS:
        yield Trouble(
            "disk_slow",
            f"The disk is slow: a commit takes {number(point.commit_p99_ms)} ms",
            "Look which other program uses the disk; stream-node doctor measures its syncs.",
        )
    if counters.retention_lag_s() > RETENTION_LAG_S:
        yield Trouble(
            "retention_behind",
            f"Retention is behind: messages have waited {duration(counters.retention_lag_s())} to be deleted",
            "This ends by itself if fewer messages come than can be deleted. Watch the free space of the disk.",
        )
    if condition.is_draining:
        yield Trouble("stopping", "The node is stopping", "Send requests to it after its next start.")
    if parts.authorizer is not None and parts.authorizer.audit.failed:
        yield Trouble(
            "audit_log_failed",
            f"{number(parts.authorizer.audit.failed)} lines of the audit log could not be written",
            "Look at the disk with the audit log, and restart the node to begin to count anew.",
        )


def of_endings(endings: list[Ending], now_s: float) -> Iterator[Trouble]:
    for each in endings:
        # A token of one hour is no warning during its whole hour. Whoever needed a token that ended a day ago knows it.
        left_s, lasts_s = each.ends_s - now_s, each.ends_s - each.began_s
        if left_s > min(ENDS_S, lasts_s / 5) or (each.kind == "token" and left_s < -ENDS_BAD_S):
            continue
        when = f"ends in {duration(left_s)}" if left_s > 0 else f"ended {duration(-left_s)} ago"
        kind: TroubleKind = "certificate_ends"
        title = f"A certificate in the file of {each.name} {when}"
        remedy = "Put a new certificate into the file. The node takes it at once."
        if each.kind == "token":
            kind, title = "token_ends", f"The token {each.name} {when}"
            remedy = "Make a new one (stream-node token create --replace), and give it to its client."
        is_early = left_s > min(ENDS_BAD_S, lasts_s / 20)
        yield Trouble(kind, title, remedy, subject=(each.name,), is_early=is_early)


def of_blocks(parts: NodeParts, silent_blocks: list[Silent]) -> Iterator[Trouble]:
    """Yields the troubles of the block node. silent_blocks: one entry if no blocks come any more."""
    found = parts.services.statistics().blocks
    if found is None:
        return
    page = link("/blocks"), "Blocks"
    for each in silent_blocks:
        count = 0 if found.node.publish is None else found.node.publish.publishers
        yield Trouble(
            "block_publishers_silent",
            f"No block has come for {duration(each.silent_s)}, and before, never for longer than "
            f"{duration(each.pause_s)}; {number(count)} {'publisher is' if count == 1 else 'publishers are'} connected",
            "Look whether the publishers of blocks run and reach this node.",
            *page,
            lasts_s=each.silent_s,
        )
    if found.node.publish is not None and found.node.publish.catch_up_stalled:
        yield Trouble(
            "blocks_stalled",
            f"The chain does not get closer to block {found.node.publish.target_block}",
            "Look whether a publisher or a source of backfill has the missing blocks.",
            *page,
        )
    if found.node.store.damaged:
        yield Trouble(
            "blocks_damaged",
            f"{_some(found.node.store.damaged, 'stored block is', 'stored blocks are')} damaged or gone on the disk",
            "Look at the disk. Publish them again, or name a source of backfill that has them; until then no reader "
            "gets them.",
            *page,
        )
    backfill = found.backfill
    if backfill.problem:
        what = "Nobody knows which blocks are missing"
        if backfill.missing:
            lacking = _some(backfill.missing, "block is", "blocks are")
            what = f"{lacking} missing, and backfill cannot fetch them"
        yield Trouble(
            "backfill_failing",
            f"{what}: {backfill.problem}",
            "Look whether the sources of backfill run, have the blocks, and can be reached from this node.",
            *page,
        )
    for source in backfill.sources:
        if source.other_chain:
            yield Trouble(
                "block_sources_disagree",
                f"The block source {source.name} has another chain: {source.other_chain}",
                "Find out which chain is right, and remove the wrong source from the settings.",
                *page,
                (source.name,),
            )
        if source.failures:
            yield Trouble(
                "block_source_failing",
                f"The block source {source.name} fails ({source.last_error}); it is asked again in "
                f"{duration(source.backoff_s)}",
                "Look whether the source runs and can be reached from this node.",
                *page,
                (source.name,),
            )


def of_cluster(parts: NodeParts) -> Iterator[Trouble]:
    found = parts.statistics().cluster if shares_shards(parts.config) else None
    if found is None:
        return
    page = link("/cluster"), "The cluster"
    # A shard has no owner for a moment at each move; only a longer time is a trouble.
    unowned = [each for each in found.unowned_s.values() if each > OWNER_WAIT_S]
    if unowned:
        yield Trouble(
            "shards_unowned",
            f"{_some(len(unowned), 'shard has', 'shards have')} had no owner for {duration(max(unowned))}, so no node "
            "serves their streams",
            "A member that lives takes them by itself. Start one, or look into the logs of those that run.",
            *page,
            lasts_s=max(unowned),
        )
    waiting = [each for each in found.router.waiting_by_shard.values() if each.waits_s > OWNER_WAIT_S]
    if waiting:
        waits_s = max(each.waits_s for each in waiting)
        yield Trouble(
            "shard_messages_waiting",
            f"{_some(sum(each.messages for each in waiting), 'message waits', 'messages wait')} here for the owners of "
            f"{_some(len(waiting), 'shard', 'shards')}, some for {duration(waits_s)}",
            "Look whether the owners run, and whether this node is connected to them. The messages go on by themselves "
            "then.",
            *page,
            lasts_s=waits_s,
        )
    for peer in (each for each in found.peers if not each.lives):
        since = "was silent, and another member has taken its shards" if peer.is_fenced else "is silent"
        lasts = "" if peer.is_fenced else f": it has not written for {duration(peer.silent_s)}"
        yield Trouble(
            "member_silent",
            f"The member {peer.name} {since}{lasts}",
            f"Look whether it runs at {peer.address} and reaches the database, and start it again. If it shall not "
            "come back, start a node of this name once more and stop it: after that it is no member any more.",
            *page,
            (peer.name,),
            peer.silent_s,
        )


def _some(count: int, one: str, many: str) -> str:
    return f"{number(count)} {one if count == 1 else many}"


def find_stuck(positions: ConsumerProgress, patience: Patience, settings: Sequence[str], now_us: int) -> list[Trouble]:
    """Returns the troubles of consumers, and teaches `patience` their progress. settings: `consumer_stuck_after`."""
    patience.look(positions.saved, {(each.client_id, each.stream): each.since_us for each in positions.waiting})
    found = []
    for beyond in positions.beyond:
        subject = beyond.client_id, beyond.stream
        found.append(Trouble("consumer_beyond_end", subject=subject, about=beyond, write=_beyond))
    for each in positions.waiting:
        lasts_s, subject = (now_us - each.since_us) / 1e6, (each.client_id, each.stream)
        if lasts_s > patience.limit_s(*subject, settings):
            found.append(Trouble("consumer_stuck", subject=subject, lasts_s=lasts_s, about=each, write=_stuck))
    return found


def _stuck(each: ConsumerLag, lasts_s: float) -> Texts:
    where = f"{each.stream}, partition {each.partition}" if each.partition else each.stream
    if each.partitions > 1:
        where = f"{number(each.partitions)} partitions of {each.stream}, longest in partition {each.partition}"
    return (
        f"The consumer {each.client_id} is stuck: no progress for {duration(lasts_s)}, "
        f"{number(each.lag)} {'message waits' if each.lag == 1 else 'messages wait'} in {where}",
        f"Look whether it runs. If message {each.index:,} stops it, set its position behind that message; if "
        "nobody needs this consumer, forget its position.",
        link("/consumer", client=each.client_id, stream=each.stream),
        "This consumer",
    )


def _beyond(each: Beyond, lasts_s: float) -> Texts:
    more = f" and {number(each.partitions - 1)} more" if each.partitions > 1 else ""
    return (
        f"The consumer {each.client_id} cannot read {each.stream}, partition {each.partition}{more}: its position is "
        f"{each.index:,}, and the stream ends at {each.end:,}",
        "The stream was made again, or put back to a backup. Set the position of the consumer to the message with "
        "which it should go on.",
        link("/consumer", client=each.client_id, stream=each.stream),
        "This consumer",
    )


def of_publishers(silent: list[Silent]) -> Iterator[Trouble]:
    for each in silent:
        subject, lasts_s = (each.stream,), each.silent_s
        yield Trouble("publisher_silent", subject=subject, lasts_s=lasts_s, about=each, write=_silent)


def _silent(each: Silent, lasts_s: float) -> Texts:
    return (
        f"The publisher of {each.stream} is silent: no message for {duration(lasts_s)}, and before, never longer "
        f"than {duration(each.pause_s)}",
        "Look whether the publisher runs and reaches this node.",
        link("/stream", name=each.stream),
        "This stream",
    )

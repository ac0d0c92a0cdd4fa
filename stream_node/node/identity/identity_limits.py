"""The limits of identities of a running node, from its settings. Logs and audits each excess.
`ockam.quotas.usage` enforces the limits."""

from __future__ import annotations

import math

import structlog
import trio

from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.quotas.shared_use import SharedUse
from ockam.quotas.usage import SETTING_PREFIX, Excess, Usages
from ockam.quotas.usage_machine import LIMIT_NAMES, IdentityLimits
from stream_node.fleet.worker_place import WorkerPlace
from stream_node.node.config import Config

TOLD_INTERVAL_S = 10.0
"""The shortest time between two log lines about exceeded limits. The audit log has a bound of its own."""

logger = structlog.get_logger(__name__)


def make_usages(config: Config, place: WorkerPlace | None) -> Usages:
    """Returns the counts of use of the node's identities, with the limits from these settings.
    place: the place of a worker process, which counts together with the others; None: the node has one process."""
    shared = None if place is None else SharedUse(place.use, len(place.addresses), place.number)
    return Usages(
        identity_limits(config),
        limits_loopback=config.identity_limits_loopback,
        on_excess=ExcessLog(),
        shared=shared,
        names_channels=not config.secure_channel_trust_anyone,
    )


def identity_limits(config: Config) -> IdentityLimits:
    """Returns the limits of all identities for which the file of the rules names no others."""
    return IdentityLimits(**{name: getattr(config, SETTING_PREFIX + name) for name in LIMIT_NAMES})


class ExcessLog:
    """Logs exceeded limits at a bounded rate, and writes them to the audit log. audit: None on a node without rules."""

    def __init__(self, audit: Audit | None = None) -> None:
        self.audit = audit
        self._told_s = -math.inf

    def __call__(self, excess: Excess) -> None:
        now_s = trio.current_time()
        if now_s >= self._told_s + TOLD_INTERVAL_S:
            self._told_s = now_s
            logger.warning("limit_exceeded", identity=excess.key, limit=excess.limit, peer=excess.peer)
        if self.audit is not None:
            event, name = "limited" if excess.is_refusal else "slowed", SETTING_PREFIX + excess.limit
            self.audit.refused(Entry(event, excess.key, excess.peer, name=name, reason=excess.reason))

"""The rules and limits of a running node: opens them with the audit log, and reads them again. Checks the protection.
`ockam.identity.rules` decides. This module connects it with the settings, the files and the connections of one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

import structlog
import trio

from ockam.actors.address import split_host_port
from ockam.actors.node import Node
from ockam.files.durable_files import state_of
from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.authorizer import Authorizer
from ockam.identity.rules.rule_file import RulesError, load_rules
from ockam.identity.rules.rules import Rule, Rules
from ockam.quotas.limits import LIMIT_NAMES, IdentityLimits
from ockam.quotas.shared_use import SharedUse
from ockam.quotas.usage import SETTING_PREFIX, Excess, Usages
from stream_node.fleet.worker_place import WorkerPlace, worker_name
from stream_node.node.config import Config, ConfigError
from stream_node.node.identity.token_services import Closer
from stream_node.node.keepers import keepers_of

INTERVAL_S = 0.5
AUDIT_FILE = "audit.jsonl"
CHANGED = "access_changed"
"""The reason, for counters, why connections are closed if the rules have changed."""

logger = structlog.get_logger(__name__)


def is_loopback(listen: str) -> bool:
    host, _ = split_host_port(listen)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def lacking(config: Config) -> str | None:
    """Returns a sentence about the protection (TLS, rules) that the node lacks; None if it needs no more."""
    has_tls = config.tls_certificate is not None
    lacks = [text for text, there in (("TLS", has_tls), ("rules", config.access_rules is not None)) if not there]
    exposed = [address for address in (config.listen, *config.http, *config.grpc_addresses) if not is_loopback(address)]
    if not exposed or not lacks:
        return None
    reached = "is reached" if len(exposed) == 1 else "are reached"
    return f"{' and '.join(exposed)} {reached} from other machines, without {' and without '.join(lacks)}"


def check_exposure(config: Config) -> None:
    """Raises ConfigError if other machines reach the node and it lacks TLS or rules; warns if it is `insecure`."""
    found = lacking(config)
    if found is None:
        return
    if not config.insecure:
        doors = {"listen": (config.listen,), "http": config.http, "grpc": config.grpc_addresses}
        setting = next(name for name, addresses in doors.items() if not all(map(is_loopback, addresses)))
        raise ConfigError(
            f"{setting}: {found}; set tls_certificate, tls_certificate_key and access_rules (docs/security.md), listen "
            "at 127.0.0.1, or say --insecure if everybody who reaches this address may do everything"
        )
    logger.warning("insecure", reason=found)


def check_rules(config: Config) -> None:
    """Raises ConfigError with all mistakes in the file of the rules, if the settings name one."""
    if config.access_rules is not None:
        _read_rules(Path(config.access_rules))


def _read_rules(file: Path) -> Rules:
    try:
        return load_rules(file)
    except RulesError as error:
        raise ConfigError(*(f"access_rules: {mistake}" for mistake in error.mistakes)) from error


def audit_file(config: Config) -> Path:
    return Path(config.data_dir) / AUDIT_FILE if config.audit_log is None else Path(config.audit_log)


class NodeAccess:
    """The rules of one node while it runs. `watch` reads their file again when it has changed, `reload` at once.
    If the new file is not valid, the old rules stay in force, and an error is logged. closers: end the connections and
    channels of the identities whose rules have changed."""

    def __init__(self, file: Path, keepers: Sequence[Rule], authorizer: Authorizer, node: Node, closer: Closer) -> None:
        self._node = node
        self._file = file
        self._keepers = tuple(keepers)
        self.authorizer = authorizer
        self.audit = authorizer.audit
        self.closers: list[Closer] = [closer]
        self._seen = state_of(file)

    async def watch(self) -> None:
        """Reads the rules again when their file has changed. Writes repeated refusals to the audit log each second."""
        ticks, looks = 0, self._seen
        while True:
            await trio.sleep(INTERVAL_S)
            # A program may write the file in parts, and the beginning of the rules may be valid by itself. So a change
            # counts only when two samples of the file are the same.
            before, looks = looks, state_of(self._file)
            if looks != self._seen and looks == before:
                self._load()
            ticks += 1
            if ticks * INTERVAL_S >= 1:
                ticks = 0
                self.audit.end_interval()

    def reload(self) -> None:
        """Reads the rules again. Also opens the file of the audit log again, which may have been renamed or removed."""
        try:
            self.audit.reopen()
        except OSError as error:
            logger.error("audit_not_opened", reason=str(error))
        self._load()

    def _load(self) -> None:
        # The state is read first: a change during the reading of the file is then seen by the next sample.
        self._seen = state_of(self._file)
        try:
            rules = load_rules(self._file)
        except RulesError as error:
            self.authorizer.note_bad_rules()
            for mistake in error.mistakes:
                logger.error("rules_not_taken", reason=mistake, in_force=len(self.authorizer.rules))
            self.audit.note(Entry("rules_not_taken", reason=str(error)))
            return
        has_changed = self.authorizer.replace_rules(Rules([*self._keepers, *rules.rules]))
        # Changed limits need no new connections: waiting requests obey them from now on.
        self._node.usages.replace_tables(rules.limits, trio.current_time())
        # Waiting pulls, subscriptions and sessions began under the old rules. They end with their connection, and a
        # client connects again.
        closed = sum(close(has_changed, CHANGED) for close in self.closers)
        logger.info("rules_loaded", file=str(self._file), rules=len(rules), connections_closed=closed)
        self.audit.note(Entry("rules_loaded", reason=f"{len(rules)} rules; {closed} connections closed"))


def open_access(
    config: Config,
    node: Node,
    close_identities: Closer,
    now_us: Callable[[], int],
    nursery: trio.Nursery,
    place: WorkerPlace | None = None,
) -> NodeAccess | None:
    """Makes the node check its messages by the rules of the settings, and watches their file. Raises ConfigError.
    Returns None if the settings name no file. place: the place of a worker process; None: the node has one process."""
    if config.access_rules is None:
        return None
    file = Path(config.access_rules)
    rules = _read_rules(file)
    try:
        audit = Audit(audit_file(config), now_us, worker_name(0 if place is None else place.number))
    except OSError as error:
        raise ConfigError(f"audit_log: cannot write {error}") from error
    # From here on every message is checked.
    keepers = keepers_of(config)
    authorizer = Authorizer(node, Rules([*keepers, *rules.rules]), audit, answer_delay_s=config.error_delay_s)
    node.gate = authorizer
    audit.note(Entry("node_started", reason=f"{len(rules)} rules"))
    node.usages.replace_tables(rules.limits, trio.current_time())
    node.usages.on_excess = ExcessLog(audit)
    access = NodeAccess(file, keepers, authorizer, node, close_identities)
    nursery.start_soon(access.watch)
    return access


TOLD_INTERVAL_S = 10.0
"""The shortest time between two log lines about exceeded limits. The audit log has a bound of its own."""


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

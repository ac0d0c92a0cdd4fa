"""Finding: the result of one check of `stream-node doctor`. This module checks the protection of a node: addresses,
TLS, rules, tokens, identities, private files, and the operator's workers.
Each file is read by the function with which the node reads it at its start, so "wrong" means that the node would not
start, or would refuse clients. A "wrong" audit log has lines that are damaged or cannot be read. Nothing is written."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from block_node.backfill.settings import describe_sources
from ockam.actors.address import split_host_port
from ockam.identity.rules.audit_lines import audit_files, examine_audit
from ockam.identity.rules.rule_file import RulesError, load_rules
from ockam.identity.rules.tokens import TokenFileError, load_tokens
from stream_node.fleet.worker_directory import worker_folders
from stream_node.hosting.specification import load_workers
from stream_node.node.config import Config, ConfigError
from stream_node.node.identity.access import audit_file, is_loopback, lacking
from stream_node.node.identity.channel_services import KNOWN_FILE, node_identity_file, trust_file
from stream_node.node.identity.tls_settings import examine_tls, find_certificate_sha384, tls_mode
from stream_node.node.identity.token_services import token_file
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.leftovers import FILE_SUFFIXES

Status: TypeAlias = Literal["ok", "warning", "wrong"]
Values: TypeAlias = dict[str, int | float | str | None]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. text: the observed fact and, unless the status is "ok", advice. values: for programs."""

    check: str
    status: Status
    text: str
    values: Values = {}


def examine_access(config: Config, *, is_running: bool = False) -> list[Finding]:
    """Runs all checks of this module. is_running: whether the node runs now, so that its own addresses are in use."""
    return [
        check_listen(config),
        check_rates(config),
        check_addresses(config, is_running=is_running),
        check_sources(config),
        check_tls(config),
        check_rules(config),
        check_tokens(config),
        check_identities(config),
        check_audit(config),
        check_private_files(config),
        check_own_workers(config),
    ]


def check_listen(config: Config) -> Finding:
    values: Values = {
        "listen": config.listen,
        "http": ", ".join(config.http) or None,
        "grpc": ", ".join(config.grpc) or None,
    }
    every = (config.listen, *config.http, *config.grpc_addresses)
    addresses = ", ".join(every)
    if all(map(is_loopback, every)):
        return Finding("listen", "ok", f"{addresses}, this machine only", values)
    found = lacking(config)
    if found is None:
        return Finding("listen", "ok", f"{addresses}, with TLS and rules", values)
    if config.insecure:
        text = f"insecure: {found}; set tls_certificate, tls_certificate_key and access_rules, or use a private network"
        return Finding("listen", "warning", text, values)
    text = f"{found}: the node does not start; set tls_certificate, tls_certificate_key and access_rules, or insecure"
    return Finding("listen", "wrong", text, values)


def check_rates(config: Config) -> Finding:
    """Checks that a node which other machines can reach limits the requests or bytes of one identity."""
    rates = {name: getattr(config, name) for name in ("identity_requests_per_second", "identity_bytes_per_second")}
    if any(rates.values()) or all(map(is_loopback, (config.listen, *config.http, *config.grpc_addresses))):
        return Finding("rates", "ok", "the limits fit", rates)
    text = (
        "one client that floods the node slows down all others; set identity_requests_per_second and "
        "identity_bytes_per_second"
    )
    return Finding("rates", "warning", text, rates)


def check_addresses(config: Config, *, is_running: bool) -> Finding:
    """Checks that the node can listen at its addresses: listens there for a moment, unless the node runs."""
    if is_running:
        return Finding("addresses", "ok", "not tried, because the node runs")
    doors = (("listen", (config.listen,)), ("http", config.http), ("grpc", config.grpc_addresses))
    for setting, address in ((name, each) for name, addresses in doors for each in addresses):
        host, port = split_host_port(address)
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            # Only listening shows whether an address is free and belongs to this machine.
            with socket.socket(family, kind, protocol) as trying:
                trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trying.bind(where)
                trying.listen()
        except OSError as error:
            text = f"{setting} {address}: {error.strerror or error}: the node does not start; choose another address"
            return Finding("addresses", "wrong", text, {setting: address})
    return Finding("addresses", "ok", "free")


def check_sources(config: Config) -> Finding:
    """Reports the protocol of each source of backfill: `HOST:PORT` alone means Ockam here, but gRPC at Hiero."""
    found = describe_sources(config.backfill_block_node_sources)
    text = ", ".join(f"{name} speaks {protocol}" for name, protocol in found.items())
    return Finding("sources", "ok", text or "none: missing blocks are not fetched", {**found})


def check_tls(config: Config) -> Finding:
    status, text, ends = examine_tls(config)
    values: Values = {"mode": tls_mode(config), "certificate_ends": ends}
    if config.grpc:
        # Consensus nodes know this node by this hash.
        values["certificate_sha384"] = sha384 = find_certificate_sha384(config)
        text += "" if sha384 is None else f"; its SHA-384, for block-nodes.json, is {sha384}"
    return Finding("tls", status, text, values)


def check_rules(config: Config) -> Finding:
    if config.access_rules is None:
        return Finding("rules", "ok", "none: everybody who reaches the node may do everything", {"rules": None})
    try:
        rules = load_rules(Path(config.access_rules))
    except RulesError as error:
        text = f"{'; '.join(error.mistakes)}: the node does not start; mend {config.access_rules}"
        return Finding("rules", "wrong", text, {"rules": None})
    audit = audit_file(config)
    # The data directory may be missing, because the node makes it. Every other folder must be there.
    if audit.is_dir() or not (audit.parent.is_dir() or audit.parent == Path(config.data_dir)):
        text = f"the audit log {audit} cannot be written: the node does not start; set audit_log to a file"
        return Finding("rules", "wrong", text, {"rules": len(rules)})
    return Finding("rules", "ok", f"{len(rules)} in {config.access_rules}", {"rules": len(rules)})


def check_tokens(config: Config) -> Finding:
    """Checks the file of the tokens. With a file that is not valid, a node starts, but accepts no token."""
    try:
        records = load_tokens(token_file(config.data_dir))
    except (OSError, TokenFileError) as error:
        return Finding("tokens", "wrong", f"{error}: the node accepts no token", {"tokens": None})
    now_s = time.time()
    valid = sum(record.state(now_s) == 0 for record in records)
    text = f"{valid} valid, {len(records) - valid} revoked or expired" if records else "none"
    return Finding("tokens", "ok", text, {"tokens": valid})


def check_identities(config: Config) -> Finding:
    """Checks the files of the secure channels: the node's identity, and the identities that it trusts or knows.
    A node without an identity makes one at its start, if it trusts anybody."""
    if not config.secure_channel:
        return Finding("secure channel", "ok", "off", {"trusted": None})
    # The cryptography of the channels is loaded only for nodes that have them.
    from ockam.identity.channel.errors import IdentityFileError
    from ockam.identity.channel.identity_file import load_identity
    from ockam.identity.channel.trust_list import KnownHistories, load_trusted

    try:
        trusted = load_trusted(trust_file(config.data_dir))
    except IdentityFileError as error:
        text = f"{error}: the node trusts no identity of this file"
        return Finding("secure channel", "wrong", text, {"trusted": None})
    count = len(trusted) + len(config.secure_channel_trusted)
    values: Values = {"trusted": count}
    if not count and not config.secure_channel_trust_anyone:
        return Finding("secure channel", "ok", "no identity is trusted, so no channel opens", values)
    try:
        load_identity(node_identity_file(config.data_dir), int(time.time()))
        if not config.secure_channel_trust_anyone:
            KnownHistories(Path(config.data_dir) / KNOWN_FILE)
    except IdentityFileError as error:
        if error.reason != "missing":
            return Finding("secure channel", "wrong", f"{error}: the node does not start", values)
    text = "every identity is trusted" if config.secure_channel_trust_anyone else f"{count} trusted"
    return Finding("secure channel", "ok", text, values)


def check_audit(config: Config) -> Finding:
    """Checks the seals of all lines of the audit log, also of its rotated files."""
    try:
        files = audit_files(audit_file(config))
        found = examine_audit(files)
    except OSError as error:
        return Finding("audit log", "wrong", f"{error}: whether lines are missing is not known", {"sealed": None})
    values: Values = {"sealed": found.sealed, "unsealed": found.unsealed, "cut": found.cut}
    # Lines that were changed or removed are worse than lines that were never complete.
    if found.problem_count:
        more = found.problem_count - len(found.problems)
        text = "; ".join([*found.problems, *([f"and {more} more"] if more else [])])
        advice = "compare with a copy, then move the damaged file away"
        return Finding("audit log", "wrong", f"the audit log is not what was written; {advice}: {text}", values)
    counts = [
        f"{number:,} {what}"
        for number, what in (
            (found.sealed, "lines as they were written"),
            (found.unsealed, "without a seal, of an older version"),
            (found.cut, "cut by a crash or a full disk"),
        )
        if number
    ]
    return Finding("audit log", "ok", ", ".join(counts) or "none", values)


def check_private_files(config: Config) -> Finding:
    tokens = [text.partition("=")[2] for text in config.forward_tokens]
    named = [Path(name) for name in (config.tls_certificate_key, *tokens) if name is not None]
    # A group may read the audit log. The other files of the data directory are for the user of the node only.
    audit = audit_files(audit_file(config))
    own = [
        file
        for folder in (Path(config.data_dir), *worker_folders(Path(config.data_dir)))
        for file in sorted(folder.glob("*"))
        if file.is_file() and file not in audit
    ]
    exposed = [str(file) for file in dict.fromkeys((*named, *own)) if _is_readable_by_others(file)]
    if exposed:
        text = f"other users of this machine may read {', '.join(exposed)}; run `chmod 600` on each"
        return Finding("private files", "warning", text, {"exposed": len(exposed)})
    return Finding("private files", "ok", "no other user may read them", {"exposed": 0})


def check_own_workers(config: Config) -> Finding:
    """Imports the modules of the operator's workers, as the node does at its start, and constructs no worker."""
    try:
        loaded = load_workers(config)
    except ConfigError as error:
        text = f"{error}: the node does not start"
        return Finding("own workers", "wrong", text, {"own_workers": None})
    values: Values = {"own_workers": len(loaded)}
    return Finding("own workers", "ok", ", ".join(each.address for each in loaded) or "none", values)


def find_unwritable(directory: Path) -> list[str]:
    """Returns the lock and database files of a data directory, and of its workers, that the node cannot write, each
    with the reason. A check by the superuser finds that it can write every file, but the node may run as another user.
    So a file whose owner is not that of its folder counts, too, unless the file's group or others may write it."""
    found = []
    for folder in (directory, *worker_folders(directory)):
        for name in (LOCK_NAME, *(f"{FILE_NAME}{suffix}" for suffix in FILE_SUFFIXES)):
            file = folder / name
            if not file.exists():
                continue
            if not os.access(file, os.W_OK):
                found.append(f"{file}, which this user must not write")
            elif file.stat().st_uid != folder.stat().st_uid and not file.stat().st_mode & 0o022:
                found.append(f"{file}, which belongs to {user_name(file)} and its folder to {user_name(folder)}")
    return found


def user_name(path: Path) -> str:
    """Returns the name of the owner of a file, or the number of a user without a name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)


def _is_readable_by_others(file: Path) -> bool:
    try:
        return bool(stat.S_IMODE(file.stat().st_mode) & 0o077)
    except OSError:
        return False

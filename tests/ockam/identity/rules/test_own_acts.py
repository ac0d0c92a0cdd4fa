"""Goal: a node acts under its own identity for nobody who may not do the same himself, and says for whom it acts.

Method: two nodes with rules and three identities: the owner of a stream of the far node, an attacker with rights on one
prefix of the near node, and the near node's own name, which may do everything at the far one. Whatever the attacker
tries, the stream of the owner stays as it was, the far node is not called, and counters and the audit log tell who has
tried what. With the rights, the same is done.
"""

from __future__ import annotations

import ast
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import Address, local
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.protocol import ERROR
from ockam.transport.wire_head import HEAD
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest, MirrorState
from stream_service.extensions import LIST, ListRequest
from stream_service.mirroring import MIRROR, ROLE, AskingMirror, BeMirror, BePrimary, MirrorPull, RoleRequest
from stream_service.names import stream_address
from stream_service.protocol import Status
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.ockam.identity.rules.own_acts import CARRIERS, OWN_ACTS, table
from tests.ockam.identity.rules.ways import Token
from tests.style.tree import ROOT, parse
from tests.support.served import PATIENCE_S, wait_until
from tests.support.stream_peer import SERVICE, StreamPeer

SECRET = [b"secret %d" % number for number in range(5)]
X = stream_address("team-x", 0)
OWN = ALL_RIGHTS & ~Right.CREATE
"""What the attacker may do to the streams of his prefix; a test adds what it takes."""


class Sides:
    """far: the node with the stream of the owner. near: the node with the prefix of the attacker, who is asked for."""

    def __init__(self, far: Guarded, near: Guarded, tokens: dict[str, Token]) -> None:
        self.far, self.near, self._tokens = far, near, tokens
        self.source = far.running.address

    def allow(self, *more: tuple[Right, str]) -> None:
        """Gives the attacker these rights beside those on his prefix."""
        given = [(OWN, "team-"), *more]
        rules = [may(rights, on, "token:attacker", f"rule {number}") for number, (rights, on) in enumerate(given)]
        self.near.allow(*rules, may(ALL_RIGHTS, "", "token:operator", "operator"))

    async def peer(self, who: str = "attacker") -> StreamPeer:
        return await self._tokens[who].peer(self.near, HEAD)

    async def refusal(self, to: Address, payload: bytes, who: str = "attacker") -> str | None:
        """Sends a request, and returns why it was refused; None: it was not."""
        answer = (await (await self.peer(who)).ask((to,), payload)).payload
        return ERROR.decode_response(answer).reason if ERROR.is_in(answer) else None

    async def mirror(
        self,
        action: MirrorAction,
        source: str = "",
        source_name: str = "",
        who: str = "attacker",
        *,
        name: str = "team-x",
        force: bool = False,
    ) -> str | None:
        promotion_id = 1 if action is MirrorAction.PROMOTE else 0
        request = MirrorRequest(1, action, name, source, source_name, force, promotion_id)
        return await self.refusal(local(ADDRESS), MIRRORS.encode_request(request), who)

    async def states(self, name: str = "") -> list[MirrorState]:
        request = MirrorRequest(1, MirrorAction.STATUS, name, "", "", False)
        operator = await self.peer("operator")
        return MIRRORS.decode_response(
            (await operator.ask((local(ADDRESS),), MIRRORS.encode_request(request))).payload
        ).mirrors

    async def names(self) -> list[str]:
        """The streams of the near node, as its operator sees them."""
        payload = LIST.encode_request(ListRequest(1, "", None, 1_000))
        found = LIST.decode_response((await (await self.peer("operator")).ask(SERVICE, payload)).payload)
        return [f"{each.stream_name}/{each.partition}" for each in found.streams]

    def refused(self) -> set[tuple[str, str]]:
        """The right and the name of everything that the audit log says was refused to the attacker."""
        lines = [line for line in self.near.audit() if line["event"] == "refused"]
        return {(line["right"], line["name"]) for line in lines if line["identity"] == "token:attacker"}


@asynccontextmanager
async def sides(folder: Path, *more: tuple[Right, str], partitions: int = 1, **settings: Any) -> AsyncIterator[Sides]:
    """more: rights of the attacker beside those on his prefix. settings: of the near node."""
    (folder / "far").mkdir()
    (folder / "near").mkdir()
    owner, node = Token(folder / "far", "owner"), Token(folder / "far", "near-node")
    (folder / "near.token").write_text(node.token)
    near_tokens = {who: Token(folder / "near", who) for who in ("attacker", "operator")}
    rules = may(ALL_RIGHTS, "", owner.identity, "owner"), may(ALL_RIGHTS, "", node.identity, "node")
    async with guarded(folder / "far", *rules) as far:
        peer = await owner.peer(far, HEAD)
        await peer.create_partitions("secret", partitions)
        route = (stream_address("secret", 0),)
        await peer.push_all(route, SECRET)
        settings["forward_tokens"] = (f"{far.running.address}={folder / 'near.token'}",)
        async with guarded(folder / "near", **settings) as near:
            found = Sides(far, near, near_tokens)
            found.allow(*more)
            yield found
            # The stream of the owner is what it was, and takes his pushes.
            assert [each.data for each in (await peer.pull(route, 0, 100)).messages] == SECRET
            assert (await peer.push(route, b"goes on")).status is Status.OK


def callers(node: Guarded) -> set[str]:
    """The identities for which anything was done or refused at a node."""
    return {line["identity"] for line in node.audit() if "identity" in line} - {"token:owner"}


CREATES = (Right.CREATE, "team-")


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ((), "create"),
        ((CREATES,), "forward"),
        ((CREATES, (Right.FORWARD, "127.0.0.1:")), "read"),
        ((CREATES, (Right.READ, "secret")), "forward"),
        (((Right.READ, "secret"), (Right.FORWARD, "127.0.0.1:")), "create"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
async def test_the_stream_of_another_is_not_mirrored_with_the_nodes_rights(
    tmp_path: Path, given: tuple[tuple[Right, str], ...], lacks: str
) -> None:
    """The node may read the source, the asker may not. Nothing is made, and the far node is not called."""
    async with sides(tmp_path, *given) as both:
        reason = await both.mirror(MirrorAction.ADD, both.source, "secret")
        assert reason is not None
        assert lacks in reason
        assert await both.names() == []
        assert callers(both.far) == set()
        assert {right for right, _ in both.refused()} == {lacks}
        assert both.near.refused() == {lacks: 1}


async def test_the_own_node_under_another_spelling_gives_nothing(tmp_path: Path) -> None:
    """The node calls itself, where it is anonymous and, in this test, may do everything."""
    async with sides(tmp_path, CREATES, (Right.FORWARD, "localhost:")) as both:
        both.near.allow(
            may(ALL_RIGHTS, "", "anonymous", "itself"),
            may(ALL_RIGHTS, "team-", "token:attacker", "attacker"),
            may(Right.FORWARD, "localhost:", "token:attacker", "calls"),
            may(ALL_RIGHTS, "", "token:operator", "operator"),
        )
        operator = await both.peer("operator")
        await operator.push(await operator.create("near-secret"), b"mine")
        here = both.near.running.address.replace("127.0.0.1", "localhost")
        reason = await both.mirror(MirrorAction.ADD, here, "near-secret")
        assert reason is not None
        assert "read on 'near-secret'" in reason
        assert await both.names() == ["near-secret/0"]


async def test_a_mirror_that_the_operator_made_is_not_promoted_over_its_source(tmp_path: Path) -> None:
    """The operator has made a mirror within the prefix of the attacker. To promote it takes the place of the owner's
    stream: that needs the right `admin` on the source, and leave to call its node."""
    async with sides(tmp_path) as both:
        assert await both.mirror(MirrorAction.ADD, both.source, "secret", who="operator") is None
        await wait_until_follows(both, 5)
        for force in (False, True):
            reason = await both.mirror(MirrorAction.PROMOTE, force=force)
            assert reason is not None
            assert "access denied: forward on" in reason
        both.allow((Right.FORWARD, f"{both.source}/secret"))
        reason = await both.mirror(MirrorAction.PROMOTE)
        assert reason is not None
        assert "access denied: admin on 'secret'" in reason
        # The same through the stream's own protocol.
        fences = ROLE.encode_request(RoleRequest(1, BePrimary(True), True))
        assert "access denied: admin on 'secret'" in str(await both.refusal(X, fences))
        assert [each.next_index for each in await both.states()] == [5]


async def wait_until_follows(both: Sides, end: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while [each.next_index for each in await both.states()] != [end]:
            await trio.sleep(0.02)


async def test_a_stream_is_not_made_a_mirror_of_what_its_owner_may_not_read(tmp_path: Path) -> None:
    """`node/stream_role/1` names any node and stream, as `mirror add` does."""
    async with sides(tmp_path, CREATES) as both:
        await (await both.peer()).create("team-x")
        asked = ROLE.encode_request(RoleRequest(1, BeMirror(both.source, "secret"), True))
        for given, lacks in (
            ((CREATES,), "forward"),
            ((CREATES, (Right.FORWARD, both.source)), "read on 'secret'"),
            (((Right.FORWARD, both.source), (Right.READ, "secret")), "create on 'team-x'"),
        ):
            both.allow(*given)
            assert lacks in str(await both.refusal(X, asked))
        assert await both.states() == []
        assert callers(both.far) == set()


@pytest.mark.parametrize("may_call", [False, True])
async def test_an_address_of_a_mirror_is_called_only_for_who_may_call_it(tmp_path: Path, may_call: bool) -> None:
    """A peer with `admin` on a stream names a mirror of it. After a start the node asks there, in its own name, whether
    that mirror has taken the place of the stream."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        place = "{}:{}".format(*listener.getsockname())
        pull = MIRROR.encode_request(MirrorPull(1, 0, 1_000, 0, 0, AskingMirror(place, "team-x")))
        calls = [(Right.FORWARD, f"{place}/team-x")] if may_call else []
        async with sides(tmp_path, CREATES, *calls) as both:
            await (await both.peer()).create("team-x")
            assert await both.refusal(X, pull) is None
        async with guarded(tmp_path / "near", may(Right.READ)):
            if may_call:
                with trio.fail_after(PATIENCE_S):
                    await trio.lowlevel.wait_readable(listener)
            else:
                with pytest.raises(BlockingIOError):
                    listener.accept()


async def test_what_the_node_does_for_somebody_is_in_the_audit_log_with_his_name(tmp_path: Path) -> None:
    given = (Right.CREATE, "team-"), (Right.READ | Right.ADMIN, "secret"), (Right.FORWARD, "127.0.0.1:")
    async with sides(tmp_path, *given) as both:
        assert await both.mirror(MirrorAction.ADD, both.source, "secret") is None
        await wait_until_follows(both, 5)
        admitted = [line for line in both.near.audit() if line["event"] == "admitted"]
        assert {(line["identity"], line["right"], line["name"]) for line in admitted} == {
            ("token:attacker", "admin", "team-x"),
            ("token:attacker", "create", "team-x"),
            ("token:attacker", "forward", f"{both.source}/secret"),
            ("token:attacker", "read", "secret"),
        }


async def test_partitions_of_a_mirror_count_for_who_asked(tmp_path: Path) -> None:
    """Nothing is made when there are too many, and the refusal is that of any create."""
    given = (Right.CREATE, "team-"), (Right.READ, "secret"), (Right.FORWARD, "127.0.0.1:")
    limits = {"identity_streams_per_hour": 3, "identity_limits_loopback": True}
    async with sides(tmp_path, *given, partitions=4, **limits) as both:
        reason = await both.mirror(MirrorAction.ADD, both.source, "secret")
        assert "limit exceeded: identity_streams_per_hour is 3 for token:attacker" in str(reason)
        assert await both.names() == []
        limited = [line for line in both.near.audit() if line["event"] == "limited"]
        assert [(line["identity"], line["name"]) for line in limited] == [
            ("token:attacker", "identity_streams_per_hour")
        ]


async def test_ports_are_not_told_apart_to_who_may_not_call_them(tmp_path: Path) -> None:
    """One that listens, one that does not, a name that does not exist, and the source itself."""
    async with sides(tmp_path, CREATES, (Right.READ, "secret")) as both:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0.0)
            open_port = "{}:{}".format(*listener.getsockname())
            reasons = set()
            for source in (open_port, "127.0.0.1:9", "no-such-host.invalid:4000", both.source):
                reason = str(await both.mirror(MirrorAction.ADD, source, "secret"))
                reasons.add(reason.replace(source, "HERE"))
            assert len(reasons) == 1
            assert "access denied: forward on 'HERE/secret'" in reasons.pop()
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_requests_that_wait_shut_no_operator_out(tmp_path: Path) -> None:
    """An attacker who may call anybody has a hundred requests wait for a port that accepts and says nothing."""
    given = CREATES, (Right.READ, "secret"), (Right.FORWARD, "127.0.0.1:")
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        silent = "{}:{}".format(*listener.getsockname())
        async with sides(tmp_path, *given) as both:
            attacker = await both.peer()
            request = MIRRORS.encode_request(MirrorRequest(1, MirrorAction.ADD, "team-x", silent, "secret", False))
            for _ in range(100):
                await attacker.send((local(ADDRESS),), request)
            # Those that are too many are told, the oldest first.
            for _ in range(36):
                assert "ask again later" in ERROR.decode_response((await attacker.receive()).payload).reason
            assert await both.states() == []
            assert await both.mirror(MirrorAction.ADD, both.source, "secret", who="operator", name="copy") is None
            await wait_until(lambda: both.near.running.server.statistics().services.mirrors)


CALLS = {"tcp", "asking", "open_connection", "open_tcp_stream", "create_connection", "urlopen"}
"""The functions by which the code of the node reaches another node."""
NODE = (
    "ockam",
    "stream_service",
    "index_service",
    "stream_node/node",
    "stream_node/care",
    "stream_node/fleet",
    "block_node",
)


def callers_of_nodes() -> set[str]:
    """The modules of the node that call one of these functions. Clients and commands are programs of their own."""
    found = set()
    files = [file for package in NODE for file in (ROOT / package).rglob("*.py")]
    for file in files:
        module = file.relative_to(ROOT).as_posix()
        for each in ast.walk(parse(file)):
            called = each.func if isinstance(each, ast.Call) else None
            name = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            if name in CALLS:
                found.add(module)
    return found


def test_the_table_of_the_documents_has_every_act_of_the_node() -> None:
    """`python -m tests.ockam.identity.rules.own_acts` prints the table."""
    assert callers_of_nodes() == {act.module for act in OWN_ACTS} | set(CARRIERS)
    assert table() in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")

"""Goal: every act is done with its right, and refused, counted and audited without it, and nothing else is needed.

Method: real sockets in both framings. Each request of `acts` is sent twice: with rules that give only the right that it
needs, and with rules that give every other right; the latter by every kind of identity, over each of the `ways`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from block_node.protocol_reading import SUBSCRIBE, Subscribed
from ockam.actors.address import local
from ockam.actors.forwarding_protocol import REGISTER, RegisterRequest
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.identity.gate import DENIED
from ockam.identity.rules.rights import ALL_RIGHTS, Right, rights_text
from ockam.identity.rules.rule_file import rule_text
from ockam.protocol import ERROR as ERROR_PROTOCOL
from ockam.protocol import REFUSAL
from ockam.transport.tcp import TcpTransport
from ockam.transport.wire import Wire
from stream_node.node.config import Config
from stream_node.node.identity.access import open_access
from stream_node.node.keepers import BLOCK_KEEPERS
from stream_service.extensions import PUSH_BATCH, RICH_PUSH, Outcome, RichStatus
from stream_service.protocol import CREATE, PUSH, CreateStream, Status
from tests.ockam.identity.rules.acts import (
    ACTS,
    BATCH_REFUSED,
    ERROR,
    ERROR_CONFIRM,
    FAR,
    NOTHING,
    OWN_WORKER,
    RICH_REFUSED,
    STORED,
    Act,
    rights_table,
    table,
)
from tests.ockam.identity.rules.attacks import Attack, attack_table, note_attack
from tests.ockam.identity.rules.guarded_node import Guarded, forbid, guarded, may, write_rules
from tests.ockam.identity.rules.ways import WAYS, WIRES, Plain, Way
from tests.support.served import PATIENCE_S, wait_until
from tests.support.stream_peer import INDEX_SERVICE, SERVICE, StreamPeer

BOTH_WIRES = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def one_of(rights: Right) -> list[Right]:
    return [right for right in Right if right & rights]


def is_denial(payload: bytes) -> bool:
    return ERROR_PROTOCOL.is_in(payload) and ERROR_PROTOCOL.decode_response(payload).reason.startswith(REFUSAL + DENIED)


async def prepare(node: Guarded, way: Way, wire: Wire) -> None:
    """Every stream that an act needs is there, with one message, and the address that stores them."""
    node.allow(may(ALL_RIGHTS, who=way.identity))
    peer = await way.peer(node, wire)
    for stream in sorted({act.stream for act in ACTS if act.stream is not None}):
        await peer.push(await peer.create(stream), b"first")
    register = REGISTER.encode_request(RegisterRequest(1, STORED, stores=True, confirms=True))
    await peer.ask((local("forwarding_service"),), register)


def has_refused(node: Guarded, count: int) -> bool:
    return sum(node.refused().values()) >= count


async def check_refused(peer: StreamPeer, act: Act) -> None:
    if act.refusal == NOTHING:
        await peer.send((act.address,), act.payload)
        return
    answer = await peer.ask((act.address,), act.payload)
    if act.refusal == ERROR_CONFIRM:
        assert PUSH.decode_response(answer.payload).status is Status.ERROR
    elif act.refusal == BATCH_REFUSED:
        failure = PUSH_BATCH.decode_response(answer.payload).failure
        assert failure is not None
        assert failure.outcome is Outcome.REFUSED
    elif act.refusal == RICH_REFUSED:
        assert RICH_PUSH.decode_response(answer.payload).status is RichStatus.REFUSED
    else:
        assert act.refusal == ERROR
        assert is_denial(answer.payload), answer.payload
        assert rights_text(act.rights) in str(answer.payload) or "any right" in str(answer.payload)


@BOTH_WIRES
@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.name)
async def test_without_its_right_every_act_is_refused_and_audited(tmp_path: Path, kind: type[Way], wire: Wire) -> None:
    """All other rights do not help, nor do those of every other identity, and what was refused has changed nothing."""
    way = kind(tmp_path)
    async with guarded(tmp_path, allow_forward=(FAR,), forwarding=True, worker=(OWN_WORKER,), **way.settings) as node:
        await prepare(node, way, wire)
        acts = [act for act in ACTS if way.forwards or act.worker != "forwarding"]
        for count, act in enumerate(acts):
            others = [name for name in ("anonymous", "certificate:bob", "token:bob") if name != way.identity]
            node.allow(
                may(ALL_RIGHTS & ~act.rights, who=way.identity),
                *(may(ALL_RIGHTS, who=name, name=name) for name in others),
            )
            await check_refused(await way.peer(node, wire), act)
            await wait_until(partial(has_refused, node, count + 1))
            # Two requests that lack the same right on the same name within a second stand in one line.
            refused = (way.identity, rights_text(act.rights), act.name or None)
            lines = [line for line in node.audit() if line["event"] == "refused"]
            (line, *_) = [each for each in lines if (each["identity"], each["right"], each.get("name")) == refused]
            assert line["reason"].endswith("no rule allows it"), act.key
            assert node.refused()[line["right"]] >= 1
        # What the node counted and what its audit log says, beside what was sent. The documents have these figures.
        await wait_until(lambda: audited(node) >= len(acts))
        found = Attack(len(acts), sum(node.refused().values()), audited(node))
        assert found == (len(acts),) * 3
        note_attack(way, wire, found)
        await check_nothing_changed(node, way, wire)


def audited(node: Guarded) -> int:
    """Equal refusals within a second stand in one line, with their number."""
    return sum(line.get("count", 1) for line in node.audit() if line["event"].startswith("refused"))


async def check_nothing_changed(node: Guarded, way: Way, wire: Wire) -> None:
    node.allow(may(ALL_RIGHTS, who=way.identity))
    peer = await way.peer(node, wire)
    for act in ACTS:
        if act.stream is not None:
            page = await peer.pull(await peer.create(act.stream), 0, 10)
            assert [message.data for message in page.messages] == [b"first"], act.key
    assert await peer.get_index("app", "orders") == 0
    assert await peer.get_partition_index("app", "orders", 1) == 0
    services = node.running.statistics().services
    # And that of the address that stores messages.
    assert services.streams == len({act.stream for act in ACTS if act.stream is not None}) + 1
    forwarding = services.forwarding
    assert forwarding is not None
    assert (forwarding.addresses, forwarding.away, forwarding.waiting) == (1, 1, 0)
    assert services.blocks is not None
    assert services.blocks.readers.subscribe.begun == 0


@BOTH_WIRES
async def test_its_right_alone_is_enough_for_every_act(tmp_path: Path, wire: Wire) -> None:
    async with guarded(tmp_path, allow_forward=(FAR,), forwarding=True, worker=(OWN_WORKER,)) as node:
        await prepare(node, Plain(tmp_path), wire)
        before = len(node.audit())
        for act in ACTS:
            # For an act that leaves something behind, one right is tried; for one that only looks, each of several.
            for right in one_of(act.rights):
                others = [may(*each, name=f"beside {number}") for number, each in enumerate(act.beside)]  # type: ignore[arg-type]
                node.allow(may(right, act.name or ""), *others)
                answer = await ask(node, await node.running.peer(wire), act)
                assert answer is None or not is_denial(answer.payload), (act.key, right)
        assert node.refused() == {}
        acted = {(line["right"], line.get("name", "")) for line in node.audit()[before:] if line["event"] == "admitted"}
        alone = (Right.CREATE, Right.DELETE, Right.ADMIN)
        expected = {(rights_text(act.rights), act.name) for act in ACTS if act.rights in alone or act.beside}
        assert acted == expected | {("operate", "blocks")}


async def ask(node: Guarded, peer: StreamPeer, act: Act) -> Message | None:
    """The answer to an act. A busy disk may take seconds for a commit; an answer that never comes is told with all that
    the node knows about itself."""
    await peer.send((act.address,), act.payload)
    if not act.answered:
        # A stream answers in order: when this answer is there, the act is done, and the rules may change.
        return await peer.ask((act.address,), CREATE.encode_request(CreateStream(act.stream)))
    # Nothing answers a save. That it was not refused, the counters show in the end.
    if act.refusal == NOTHING:
        return None
    try:
        return await peer.receive(PATIENCE_S)
    except trio.TooSlowError:
        pytest.fail(f"no answer to {act.key} in {PATIENCE_S:g} s; the node: {node.running.statistics()}")


@pytest.mark.parametrize("act", [act for act in ACTS if act.name is not None], ids=lambda act: act.key)
def test_a_right_on_another_name_does_not_help(act: Act) -> None:
    """The rules decide by the name; which name a request demands, the tests over sockets show."""
    from ockam.identity.identity import ANONYMOUS
    from ockam.identity.rules.rights import Demand
    from ockam.identity.rules.rules import Rules

    assert not Rules([may(ALL_RIGHTS, str(act.name) + "~")]).allows(ANONYMOUS, Demand(act.rights, act.name))


async def test_lists_show_only_names_on_which_the_asker_has_a_right(tmp_path: Path) -> None:
    """A page of which nothing may be shown does not end the list."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        peer = await node.running.peer()
        for name in ("a1", "a2", "b1", "b2", "c1"):
            await peer.create(name)
            await peer.save_index(f"app-{name}", "s", 3)
        assert await peer.get_index("app-c1", "s") == 3
        node.allow(may(Right.READ, "b"), may(Right.WRITE, "c", name="two"), may(Right.INDEX, "app-b", name="three"))
        peer = await node.running.peer()
        assert await names_of(peer) == ["b1", "b2", "c1"]
        assert await clients_of(peer) == ["app-b1", "app-b2"]
        assert node.refused() == {}


async def test_a_list_reads_no_names_that_it_must_not_show(tmp_path: Path) -> None:
    """Among 300 streams and clients, of which the asker may see two, a page of one costs a few reads, not hundreds."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        peer = await node.running.peer()
        for number in range(300):
            await peer.send(SERVICE, CREATE.encode_request(CreateStream(f"a{number:03}")))
            await peer.save_index(f"a{number:03}", "s", 3)
        for _ in range(300):
            await peer.receive()
        for name in ("b1", "b2"):
            await peer.create(name)
            assert await peer.get_index(name, "s") == 0
        node.allow(
            may(Right.READ | Right.INDEX, "b"), may(Right.READ | Right.INDEX, "a1", name="two"), forbid("a", "three")
        )
        peer = await node.running.peer()
        before = node.running.statistics().storage.reads
        assert await names_of(peer) == ["b1", "b2"]
        assert await clients_of(peer) == ["b1", "b2"]
        assert node.running.statistics().storage.reads - before <= 10


async def names_of(peer: StreamPeer) -> list[str]:
    from stream_service.extensions import LIST, ListRequest, StreamKey
    from tests.support.stream_peer import SERVICE

    found: list[str] = []
    more = True
    while more:
        after = StreamKey(found[-1], 0) if found else None
        request = LIST.encode_request(ListRequest(1, "", after, 1))
        page = LIST.decode_response((await peer.ask(SERVICE, request)).payload)
        assert page.streams or not page.more
        found += [each.stream_name for each in page.streams]
        more = page.more
    return found


async def clients_of(peer: StreamPeer) -> list[str]:
    from index_service.extensions import POSITIONS, PositionKey, PositionsRequest

    found: list[str] = []
    more = True
    while more:
        after = PositionKey(found[-1], "s", 0) if found else None
        request = POSITIONS.encode_request(PositionsRequest(1, None, None, after, 1))
        page = POSITIONS.decode_response((await peer.ask(INDEX_SERVICE, request)).payload)
        assert page.positions or not page.more
        found += [each.client_id for each in page.positions]
        more = page.more
    return found


async def test_what_cannot_be_decoded_is_answered_only_to_peers_with_a_right(tmp_path: Path) -> None:
    async with guarded(tmp_path, forwarding=True) as node:
        absent = ("forwarding", "forwarding address", "own worker")
        workers = {act.address for act in ACTS if act.stream is None and act.worker not in absent}
        for address in sorted(workers, key=str):
            for payload in (b"", b"\xff", b"\x05hello", b"\x0estream_create"):
                peer = await node.running.peer()
                if address == INDEX_SERVICE[0]:
                    # The index service never answers what it cannot read, with rules and without.
                    await peer.send((address,), payload)
                else:
                    assert is_denial((await peer.ask((address,), payload)).payload), (address, payload)
        await wait_until(lambda: sum(node.refused().values()) == 4 * len(workers))


async def test_a_name_that_no_stream_can_have_is_not_kept(tmp_path: Path) -> None:
    """A peer without rights fills neither the memory nor the audit log with names."""
    async with guarded(tmp_path, may(Right.READ, "b")) as node:
        peer = await node.running.peer()
        answer = await peer.ask(SERVICE, CREATE.encode_request(CreateStream("x" * 1_000_000)))
        assert "1000000 bytes; at most" in ERROR_PROTOCOL.decode_response(answer.payload).reason
        assert len(str(node.audit())) < 1_000


async def test_a_change_of_rules_ends_what_began_before(tmp_path: Path) -> None:
    """A parked pull and a subscription of an identity whose rules changed end; a bad file changes nothing."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        peer = await node.running.peer()
        route = await peer.create("orders")
        subscribe = next(act for act in ACTS if act.worker == "block_subscribe")
        answer = await peer.ask((subscribe.address,), subscribe.payload)
        assert isinstance(SUBSCRIBE.decode_response(answer.payload), Subscribed)
        # The same rules in other words are no change.
        node.allow(may(ALL_RIGHTS))
        assert (await peer.push(route, b"x")).index == 0
        (tmp_path / "access.toml").write_text("[[rule]]\nname = 'x'\nmay = ['reed']\n")
        node.running.server.reload()
        assert (await peer.push(route, b"y")).index == 1
        assert node.audit()[-1]["event"] == "rules_not_taken"
        node.allow(may(Right.READ))
        await peer.wait_closed()
        statistics = node.running.statistics()
        assert (statistics.access.reloads, statistics.access.reloads_failed) == (2, 1)  # type: ignore[union-attr]
        await node.running.wait_closed_because("access_changed")


async def test_a_changed_file_is_taken_without_a_signal(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        first = ACTS[0]
        assert is_denial((await (await node.running.peer()).ask((first.address,), first.payload)).payload)
        (tmp_path / "access.toml").write_text(
            "[[rule]]\nname = 'x'\nwho = 'anonymous'\nmay = 'all'\non = ''\n", encoding="utf-8"
        )
        with trio.fail_after(PATIENCE_S):
            while node.running.statistics().access.reloads == 0:  # type: ignore[union-attr]
                await trio.sleep(0.01)
        assert not is_denial((await (await node.running.peer()).ask((first.address,), first.payload)).payload)


async def test_rules_that_are_written_in_parts_are_taken_as_a_whole(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The first part is valid by itself, and allows what the second part forbids. Text that stays invalid changes
    nothing."""
    file = tmp_path / "access.toml"
    write_rules(file, [may(Right.READ)])
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        config = Config(data_dir=str(tmp_path), access_rules=str(file))
        access = open_access(config, node, TcpTransport(node, nursery).close_identities, lambda: 0, nursery)
        assert access is not None
        assert node.gate is not None
        parts = ["", rule_text(may(ALL_RIGHTS)), rule_text(forbid("", "but no deletion"))]
        for end in range(1, len(parts) + 1):
            file.write_text("".join(parts[:end]))
            await trio.sleep(0.45)
            assert access.authorizer.statistics().reloads == 0
        await trio.sleep(1)
        assert access.authorizer.statistics().reloads == 1
        assert not node.gate.holds(Origin("tcp"), Right.READ, "orders")
        file.write_text("[[rule]")
        await trio.sleep(10)
        statistics = access.authorizer.statistics()
        assert (statistics.reloads, statistics.reloads_failed, statistics.rules) == (1, 1, 2 + len(BLOCK_KEEPERS))
        nursery.cancel_scope.cancel()


def test_the_table_in_the_documents_is_that_of_the_acts() -> None:
    """`python -m tests.ockam.identity.rules.acts` and `python -m tests.ockam.identity.rules.attacks` print the
    tables."""
    document = Path(__file__).parents[4] / "docs" / "security.md"
    assert table() in document.read_text(encoding="utf-8")
    assert rights_table() in document.read_text(encoding="utf-8")
    assert attack_table() in document.read_text(encoding="utf-8")

"""Goal: no flood fills the audit log or hides the lines about others, and no event is lost from its counts.

Method: the bounds alone with any order of events, and a real node whose acts the test counts itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.identity import ANONYMOUS
from ockam.identity.rules.audit_lines import ACTS, PARTIES_MAX, REFUSALS, AuditLines, Bound, Entry
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.quotas.usage import party_key
from stream_service.extensions import RETENTION, Retention, RetentionRequest
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.support.served import wait_until


def refusals() -> AuditLines:
    return AuditLines(REFUSALS, more="refused_more")


def taken(lines: AuditLines, *entries: Entry) -> list[Entry]:
    return [entry for entry in entries if lines.take(entry)]


def test_many_hosts_together_are_bounded() -> None:
    lines = refusals()
    flood = [Entry("refused", "anonymous", f"10.0.{n % 200}.1:{n}", "read", str(n)) for n in range(5_000)]
    assert len(taken(lines, *flood)) == REFUSALS.kind_max
    more = list(lines.end_interval())
    assert sum(entry.count for entry in more) == 5_000 - REFUSALS.kind_max
    assert [entry.identity for entry in more] == PARTIES_MAX * ["anonymous"] + ["others"]


def test_a_flood_of_one_identity_hides_nobody_elses_refusal() -> None:
    """A flooding certificate, and a flooding host without one. How many of whom were left out is told."""
    lines = refusals()
    for n in range(1_000):
        lines.take(Entry("refused", "certificate:flood", f"10.0.0.1:{n}", "read", str(n)))
        lines.take(Entry("refused", "anonymous", f"10.0.0.2:{n}", "read", str(n)))
    alice = Entry("refused", "certificate:alice", "10.0.0.1:5", "read", "a")
    other = Entry("refused", "anonymous", "10.0.0.3:5", "read", "a")
    assert taken(lines, alice, other) == [alice, other]
    left = 1_000 - REFUSALS.party_max
    assert [(each.event, each.identity, each.peer, each.count) for each in lines.end_interval()] == [
        ("refused_more", "certificate:flood", "", left),
        ("refused_more", "anonymous", "10.0.0.2", left),
    ]


def test_many_anonymous_hosts_hide_no_proved_identity() -> None:
    """Identities of different sources have bounds of their own. Anybody may have a thousand addresses."""
    lines = refusals()
    for n in range(5_000):
        lines.take(Entry("refused", "anonymous", f"10.0.{n // 250}.{n % 250}:1", "read", str(n)))
    alice = Entry("refused", "certificate:alice", "10.0.0.1:5", "read", "a")
    assert taken(lines, alice) == [alice]


def test_the_addresses_of_one_network_are_one_party() -> None:
    """One machine can have all addresses of an IPv6 network of 64 bits; that of the line is the network."""
    lines = refusals()
    flood = [Entry("refused", "anonymous", f"[2001:db8::{n:x}]:1", "read", "a") for n in range(1_000)]
    neighbour = Entry("refused", "anonymous", "[2001:db8:0:1::1]:1", "read", "a")
    assert len(taken(lines, *flood, neighbour)) == REFUSALS.party_max + 1
    (more,) = lines.end_interval()
    assert (more.identity, more.peer) == ("anonymous", "2001:db8::/64")
    assert more.count == 1_000 - REFUSALS.party_max


def test_equal_lines_of_one_host_are_one_whatever_their_port() -> None:
    """Each connection has another port. The first line has its port, and the count of the others only the host."""
    lines = refusals()
    entries = [Entry("token_refused", "anonymous", f"10.0.0.1:{n}", reason="unknown") for n in range(100)]
    assert taken(lines, *entries, Entry("other", "anonymous", "10.0.0.1:7")) == [
        entries[0],
        Entry("other", "anonymous", "10.0.0.1:7"),
    ]
    assert list(lines.end_interval()) == [
        Entry("token_refused_again", "anonymous", "10.0.0.1", reason="unknown", count=99)
    ]


def test_a_flood_that_goes_on_writes_little() -> None:
    """After the first second, a party has few lines in each second, and after a pause all of them again."""
    lines = refusals()

    def second() -> int:
        flood = (Entry("refused", "token:flood", name=str(n)) for n in range(1_000))
        return len(taken(lines, *flood)) + len(list(lines.end_interval()))

    assert second() == REFUSALS.party_max + 1
    assert {second() for _ in range(100)} == {REFUSALS.party_per_s + 1}
    for _ in range(REFUSALS.party_max // REFUSALS.party_per_s):
        list(lines.end_interval())
    assert second() == REFUSALS.party_max + 1


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.tuples(st.sampled_from(["anonymous", "token:a", "token:b"]), st.integers(0, 3), st.integers(0, 20)),
        )
    )
)
def test_every_event_is_in_a_line_or_in_a_count(events: list[tuple[str, int, int] | None]) -> None:
    """None: a second ends. However tight the bounds are, the sum of all lines is the number of events."""
    lines = AuditLines(Bound(3, 1, 5, 2), more="more")
    told = 0
    for event in [*events, None]:
        if event is None:
            told += sum(entry.count for entry in lines.end_interval())
        else:
            identity, host, name = event
            told += lines.take(Entry("refused", identity, f"10.0.0.{host}:{name}", name=str(name)))
    assert told == sum(event is not None for event in events)


def test_a_channel_that_anybody_may_open_counts_by_its_connection() -> None:
    """Whoever makes identities by the thousand is still one party: the one whose limits they use."""
    party = party_key(ANONYMOUS, "10.0.0.1:5")
    lines = refusals()
    flood = [Entry("channel_refused", f"channel:I{n}", f"10.0.0.1:{n}") for n in range(500)]
    assert sum(lines.take(each, party) for each in flood) == REFUSALS.party_max


@pytest.mark.parametrize("names", [1, 40])
async def test_every_administrative_act_is_counted(tmp_path: Path, names: int) -> None:
    """The test counts the acts that the node has confirmed, from several connections, and the audit log has as many.
    Equal acts are folded, so a loop over one stream writes few lines."""
    acts, made = 0, set[int]()
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        payload = RETENTION.encode_request(RetentionRequest(1, Retention(None, 1, None)))
        for _ in range(3):
            peer = await node.running.peer()
            for number in range(names):
                route = await peer.create(f"orders{number}")
                made.add(number)
                for _ in range(300 // names):
                    answer = await peer.ask(route, payload)
                    assert RETENTION.is_in(answer.payload)
                    acts += 1

        def counted() -> int:
            found = [line for line in node.audit() if line["event"].startswith("admitted")]
            return sum(line.get("count", 1) for line in found)

        await wait_until(lambda: counted() == acts + len(made))
        found = [line for line in node.audit() if line["event"].startswith("admitted")]
    assert {line["right"] for line in found} == {"admin", "create"}
    assert len(found) < acts / 2


async def test_a_flood_of_acts_writes_few_lines_and_hides_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An identity with a right on many names; here three lines are many."""
    monkeypatch.setattr("ockam.identity.rules.audit.ACTS", ACTS._replace(party_max=3, party_per_s=1))
    async with guarded(tmp_path, may(ALL_RIGHTS & ~Right.READ)) as node:
        peer = await node.running.peer()
        for number in range(30):
            route = await peer.create(f"orders{number}")
            await peer.ask(route, RETENTION.encode_request(RetentionRequest(1, Retention(None, 1, None))))

        def counted() -> int:
            return sum(line.get("count", 1) for line in node.audit() if line["event"].startswith("admitted"))

        # Each stream is an act, and its retention another one.
        await wait_until(lambda: counted() == 60)
        events = [line["event"] for line in node.audit()]
    assert 1 <= events.count("admitted_more") <= events.count("admitted") <= 10

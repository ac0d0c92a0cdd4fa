"""Goal: the accounting of one identity never loses, forgets or invents anything. Method: a model of all its steps, and
examples with numbers that are worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ockam.identity.identity import ANONYMOUS, Identity
from ockam.quotas.limits import NO_LIMITS, OPEN_LIMITS, Bucket, IdentityLimits
from ockam.quotas.usage import UNLIMITED, Excess, Usage, Usages, is_limited, party_key
from tests.support.examples import examples

OPEN = st.sampled_from(OPEN_LIMITS)
SOME = st.one_of(st.none(), st.integers(1, 4))


class UsageModel(RuleBasedStateMachine):
    """Compares the usage with plain numbers: lists of what is open, and every permit that was spent, with its time.

    No rule of the model is that of the usage: a rate is checked over every span of time between two spends."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = IdentityLimits()
        self.usage = Usage("certificate:a", NO_LIMITS)
        self.opened: Counter[str] = Counter()
        self.held: list[int] = []
        self.created: list[tuple[float, int]] = []
        self.now_s = 0.0
        self.rate_changed = False

    @rule(name=OPEN)
    def take(self, name: str) -> None:
        most = getattr(self.limits, name)
        assert (self.usage.take(name) is None) is (most is None or self.opened[name] < most)
        self.opened[name] = self.usage.count(name)

    @precondition(lambda self: +self.opened)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(+self.opened)))
        self.usage.give_back(name)
        self.opened[name] -= 1

    @rule(size=st.integers(0, 300))
    def hold(self, size: int) -> None:
        self.usage.hold(size)
        self.held.append(size)

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.usage.hold(-self.held.pop())

    @rule(seconds=st.floats(0, 2_000))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(partitions=st.integers(1, 5))
    def create(self, partitions: int) -> None:
        if self.usage.create(partitions, self.now_s) is None:
            self.created.append((self.now_s, partitions))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        values = {name: data.draw(SOME) for name in OPEN_LIMITS}
        self.limits = IdentityLimits(**values, in_flight_bytes_max=data.draw(st.one_of(st.none(), st.just(100))))
        # Streams keep one limit for the whole run, from the first change on, so that the check below has one number.
        self.limits = IdentityLimits(
            **{name: getattr(self.limits, name) for name in (*OPEN_LIMITS, "in_flight_bytes_max")}, streams_per_hour=4
        )
        if not self.rate_changed:
            self.created.clear()
            self.rate_changed = True
        self.usage.change_limits(self.limits, self.now_s)

    @invariant()
    def agrees(self) -> None:
        self.usage.check()
        assert self.usage.held_bytes == sum(self.held)
        most = self.limits.in_flight_bytes_max
        assert self.usage.is_over is (most is not None and sum(self.held) > most)
        if self.rate_changed:
            # In no span of time more than a full bucket and what has come since.
            for first, (begin_s, _) in enumerate(self.created):
                spent = 0
                for at_s, count in self.created[first:]:
                    spent += count
                    assert spent <= 4 + (at_s - begin_s) * 4 / 3600 + 1e-6

    def teardown(self) -> None:
        for name, count in self.opened.items():
            for _ in range(count):
                self.usage.give_back(name)
        self.usage.hold(-sum(self.held))
        assert self.usage.is_unused(self.now_s + 3_600 * 2)


TestUsageModel = UsageModel.TestCase
TestUsageModel.settings = settings(max_examples=examples(40))


def test_a_bucket_lets_a_burst_pass_and_then_keeps_the_rate() -> None:
    bucket = Bucket(rate=10, room_max=10)
    bucket.spend(10, 0.0)
    assert bucket.delay_s(0.0) == 0
    bucket.spend(5, 0.0)
    assert bucket.delay_s(0.0) == pytest.approx(0.5)
    assert bucket.delay_s(0.2) == pytest.approx(0.3)
    assert bucket.room(100.0) == 10


def test_a_lower_limit_keeps_the_debt() -> None:
    usage = Usage("certificate:a", IdentityLimits(requests_per_second=100))
    usage.spend(300, 0, 0.0)
    assert usage.delay_s(0.0)[0] == pytest.approx(2.0)
    usage.change_limits(IdentityLimits(requests_per_second=10), 0.0)
    assert usage.delay_s(0.0)[0] >= 20
    usage.change_limits(NO_LIMITS, 0.0)
    assert usage.delay_s(0.0) == (0.0, "")


def test_permits_of_creates_that_failed_come_back_and_never_more_than_all() -> None:
    usage = Usage("certificate:a", IdentityLimits(streams_per_hour=4))
    assert usage.create(3, 0.0) is None
    usage.give_back_created(2, 0.0)
    assert [usage.create(count, 0.0) is None for count in (4, 3, 1)] == [False, True, False]
    # After half an hour two permits have come back by themselves.
    usage.give_back_created(4, 1_800.0)
    assert [usage.create(count, 1_800.0) is None for count in (5, 4, 1)] == [False, True, False]


def test_reads_are_small_enough_for_the_rate() -> None:
    usage = Usage("certificate:a", IdentityLimits(requests_per_second=10_000))
    usage.note_request_bytes(100, 20_000)
    # Fifty requests of 200 bytes in five milliseconds.
    assert usage.read_bytes_max() == 10_000
    for _ in range(20):
        usage.note_request_bytes(0, 10_000)
    assert usage.read_bytes_max() > 1_000_000, "a request larger than a read is not read in small pieces"


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("192.0.2.7:4000", "anonymous:192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:1", "anonymous:2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:9", "anonymous:2001:db8:1:2::/64"),
        ("[2001:db8:1:3::1]:9", "anonymous:2001:db8:1:3::/64"),
        ("[::ffff:192.0.2.7]:4", "anonymous:192.0.2.7"),
        ("[fe80::1%eth0]:4", "anonymous:fe80::/64"),
        ("[::1]:4", "anonymous:::1"),
    ],
)
def test_an_anonymous_peer_is_known_by_its_address(peer: str, key: str) -> None:
    assert party_key(ANONYMOUS, peer) == key
    assert party_key(Identity("certificate", "alice"), peer) == "certificate:alice"


def test_the_most_precise_table_decides_each_limit() -> None:
    usages = Usages(IdentityLimits(connections_max=1, channels_max=9))
    usages.replace_tables(
        {
            "*": {"connections_max": 2, "streams_per_hour": 7},
            "anonymous": {"connections_max": 3},
            "certificate:*": {"connections_max": 4},
            "certificate:al*": {"connections_max": 5},
            "certificate:alice": {"connections_max": None},
        },
        0.0,
    )
    found = {
        key: usages.limits_of(key).connections_max
        for key in ("channel:I1", "anonymous:10.0.0.1", "certificate:bob", "certificate:albert", "certificate:alice")
    }
    assert list(found.values()) == [2, 3, 4, 5, None]
    alice = usages.limits_of("certificate:alice")
    assert (alice.channels_max, alice.streams_per_hour) == (9, 7)


def test_anonymous_peers_of_this_machine_have_only_the_limits_that_name_them() -> None:
    limits = IdentityLimits(connections_max=1)
    here = "anonymous:127.0.0.1"
    assert Usages(limits).limits_of(here) == Usages(limits).limits_of("anonymous:::1") == NO_LIMITS
    assert Usages(limits, limits_loopback=True).limits_of(here) == limits
    usages = Usages(limits)
    usages.replace_tables({"anonymous": {"channels_max": 1}}, 0.0)
    assert usages.limits_of(here) == IdentityLimits(channels_max=1)


def test_unused_identities_are_forgotten_and_debts_are_not() -> None:
    told: list[Excess] = []
    usages = Usages(IdentityLimits(connections_max=1, streams_per_hour=10), on_excess=told.append)
    usages.get("certificate:a", 0.0)
    usages.get("certificate:b", 0.0).take("connections_max")
    usages.get("certificate:c", 0.0).create(5, 0.0)
    usages.forget_unused(1.0)
    assert usages.get("certificate:b", 1.0).count("connections_max") == 1
    reason = usages.get("certificate:c", 1.0).create(6, 1.0, "host:1")
    assert reason is not None
    assert is_limited(reason)
    assert "identity_streams_per_hour is 10 for certificate:c" in reason
    assert told == [Excess("certificate:c", "streams_per_hour", reason, "host:1")]
    assert usages.statistics().refused == {"streams_per_hour": 1}
    assert usages.statistics().identities == 1


def test_the_nodes_own_workers_have_no_limits() -> None:
    assert UNLIMITED.limits == NO_LIMITS
    assert all(UNLIMITED.take(name) is None for name in OPEN_LIMITS)
    for name in OPEN_LIMITS:
        UNLIMITED.give_back(name)

"""Goal: a decision is what the rules say, read one by one. Method: a second, naive implementation, and Hypothesis."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.identity import ANONYMOUS, NODE, Identity
from ockam.identity.rules.rights import ALL_RIGHTS, NO_RIGHT, RIGHT_NAMES, STREAM_RIGHTS, Demand, Right, rights_text
from ockam.identity.rules.rules import ANYTHING_TO_ANYBODY, KNOWN_CHARACTERS_MAX, KNOWN_NAME_CHARACTERS, Rule, Rules

KEEPER = Identity("local", "keeper")
ALICE, ALAN, SPARK = Identity("certificate", "alice"), Identity("certificate", "alan"), Identity("token", "spark")
IDENTITIES = (ANONYMOUS, NODE, KEEPER, ALICE, ALAN, SPARK, Identity("channel", "alice"))
PATTERNS = ("*", "anonymous", "certificate:alice", "certificate:al*", "certificate:*", "token:spark", "channel:*")
NAMES = ("", "a", "ab", "abc", "b", "bc", "c")
rights = st.lists(st.sampled_from(list(Right)), min_size=1, max_size=4).map(lambda found: Right(sum(set(found))))
rules = st.lists(
    st.builds(
        lambda who, given, forbids, on, keeps: Rule(
            "one",
            tuple(who),
            may=NO_RIGHT if forbids else given,
            may_not=given if forbids else NO_RIGHT,
            on=tuple(on),
            keeper=KEEPER if keeps and forbids else None,
        ),
        st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
        rights,
        st.booleans(),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=2),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=6,
)


def is_meant(rule: Rule, identity: Identity) -> bool:
    if rule.keeper is not None:
        return str(identity) != str(rule.keeper)
    if str(identity).split(":")[0] == "local":
        return False
    for pattern in rule.who:
        if pattern == str(identity):
            return True
        if pattern[-1] == "*" and str(identity)[: len(pattern) - 1] == pattern[:-1]:
            return True
    return False


def naive(written: list[Rule], identity: Identity, right: Right, name: str) -> bool:
    """One right on one name, by reading every rule."""
    allowed = identity.source == "local"
    for rule in written:
        if is_meant(rule, identity) and right in rule.may and any(name[: len(each)] == each for each in rule.on):
            allowed = True
    for rule in written:
        if is_meant(rule, identity) and right in rule.may_not and any(name[: len(each)] == each for each in rule.on):
            allowed = False
    return allowed


@given(rules, st.sampled_from(IDENTITIES), rights, st.sampled_from(NAMES))
def test_a_decision_is_what_the_naive_reading_says(
    written: list[Rule], identity: Identity, demanded: Right, name: str
) -> None:
    """One of several demanded rights is enough."""
    expected = any(naive(written, identity, right, name) for right in Right if right in demanded)
    made = Rules(written)
    for _ in range(2):  # The second answer comes from what the first one left in memory.
        assert made.allows(identity, Demand(demanded, name)) is expected
    decision = made.decide(identity, Demand(demanded, name))
    assert decision.allowed is expected
    if decision.allowed:
        assert decision.rule is not None
        assert decision.rule.may & demanded
    else:
        assert rights_text(demanded) in decision.reason or demanded == ALL_RIGHTS


@given(rules, st.sampled_from(IDENTITIES), rights)
def test_a_right_on_any_name_is_a_right_on_at_least_one(
    written: list[Rule], identity: Identity, demanded: Right
) -> None:
    """Names beyond all prefixes are tried too: the prefixes themselves, and each with something behind it."""
    names = [*NAMES, *(name + "~" for name in NAMES)]
    expected = any(naive(written, identity, right, name) for right in Right if right in demanded for name in names)
    assert Rules(written).allows(identity, Demand(demanded, None)) is expected
    assert Rules(written).decide(identity, Demand(demanded, None)).allowed is expected


@given(rules, st.sampled_from(IDENTITIES), rights, st.sampled_from(NAMES))
def test_the_next_name_with_a_right_is_the_first_that_the_naive_reading_finds(
    written: list[Rule], identity: Identity, demanded: Right, start: str
) -> None:
    """Among all names of up to three letters. The names behind a prefix differ only by the prefixes that they have."""
    names = sorted("".join(letters) for count in range(4) for letters in product("abcd", repeat=count))
    wanted = [one for one in Right if one in demanded]
    expected = next(
        (each for each in names if each >= start and any(naive(written, identity, one, each) for one in wanted)), None
    )
    assert Rules(written).grants(identity).find_next(demanded, start) == expected


def test_nothing_is_allowed_without_a_rule() -> None:
    for identity in (ANONYMOUS, ALICE, SPARK):
        for right in Right:
            decision = Rules(()).decide(identity, Demand(right, "orders"))
            assert not decision.allowed
            assert decision.reason == f"{rights_text(right)} on 'orders' for {identity}: no rule allows it"


def test_a_refusal_names_the_rule_that_forbids() -> None:
    made = Rules([*ANYTHING_TO_ANYBODY, Rule("keep orders", ("token:*",), may_not=Right.DELETE, on=("ord",))])
    decision = made.decide(SPARK, Demand(Right.DELETE, "orders"))
    assert decision.reason == "delete on 'orders' for token:spark: rule 'keep orders' forbids it"
    assert made.decide(ALICE, Demand(Right.DELETE, "orders")).allowed
    assert made.decide(SPARK, Demand(STREAM_RIGHTS, "orders")).allowed


def test_what_a_part_of_the_node_keeps_is_kept_from_its_other_workers_too() -> None:
    """Kept streams and the operator's rules are decided by the same code."""
    kept = Rule("kept", (), may_not=Right.WRITE, on=("kept.",), keeper=KEEPER, reason="kept by the keeper alone")
    made = Rules([kept, *ANYTHING_TO_ANYBODY])
    assert made.decide(KEEPER, Demand(Right.WRITE, "kept.x")).allowed
    for identity in (NODE, ANONYMOUS, ALICE):
        assert made.decide(identity, Demand(Right.WRITE, "kept.x")).explanation == "kept by the keeper alone"
        assert made.decide(identity, Demand(Right.READ, "kept.x")).allowed


def test_rights_have_the_names_that_rules_use() -> None:
    assert sorted(RIGHT_NAMES) == sorted(
        [
            "read",
            "write",
            "create",
            "delete",
            "admin",
            "index",
            "share",
            "block-publish",
            "block-read",
            "operate",
            "forward",
            "route",
            "register",
        ]
    )
    assert sum(RIGHT_NAMES.values()) == ALL_RIGHTS


def test_remembered_names_have_a_bound_in_characters() -> None:
    """Goal: peers, who choose the names, cannot fill the memory. Method: count what is remembered, over identities."""
    rules = Rules([Rule("all", ("*",), may=ALL_RIGHTS)])
    everybody = [rules.grants(Identity("certificate", f"c{number}")) for number in range(10)]
    for number in range(12_000):
        grants = everybody[number % 10]
        assert grants.rights_on(f"{number:0500d}") == ALL_RIGHTS
        if number % 1_000 == 0:
            assert grants.rights_on("x" * 1_000_000) == ALL_RIGHTS
    remembered = sum(len(name) + KNOWN_NAME_CHARACTERS for each in everybody for name in each._known)
    assert 0 < remembered <= KNOWN_CHARACTERS_MAX

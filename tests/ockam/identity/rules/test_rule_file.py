"""Goal: a file of rules means what it says, and a wrong one says which rule is wrong where. Method: texts and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.rules.rights import ALL_RIGHTS, NO_RIGHT, Right
from ockam.identity.rules.rule_file import (
    RulesError,
    change_rules,
    load_rules,
    make_rule,
    parse_rules,
    rule_text,
)
from ockam.identity.rules.rules import Rule

FILE = """\
# The rules of the shop.

[[rule]]
name = "spark reads"  # every night
who = "token:spark"
may = ["read", "index"]
on = ["orders", "events/"]

  [[rule]]   # the second
name = "nobody deletes"
who = ["*"]
may_not = "delete"
on = ""
"""
SPARK = Rule("spark reads", ("token:spark",), Right.READ | Right.INDEX, NO_RIGHT, ("orders", "events/"))
NOBODY = Rule("nobody deletes", ("*",), NO_RIGHT, Right.DELETE, ("",))


def test_a_file_is_read() -> None:
    assert parse_rules(FILE).rules == (SPARK, NOBODY)
    assert parse_rules("").rules == ()


@pytest.mark.parametrize(
    ("before", "after", "line", "expected"),
    [
        ('"read"', '"reed"', 3, "rule 'spark reads': may: 'reed' is no right; there are read, write"),
        ('may_not = "delete"', "", 9, "rule 'nobody deletes': has to have either `may` or `may_not`"),
        ('may_not = "delete"', 'may_not = "delete"\nmay = "all"', 9, "has to have either `may` or `may_not`"),
        ('who = ["*"]', 'who = ["spark"]', 9, "who: 'spark' is no identity"),
        ('who = ["*"]', 'who = ["local:node"]', 9, "rules for this node's own workers are built in"),
        ('who = ["*"]', 'who = ["local:block-node"]', 9, "rules for this node's own workers are built in"),
        (
            'who = ["*"]',
            'who = ["certificate:*-spark"]',
            9,
            "'certificate:*-spark': a star stands at the end only",
        ),
        ('who = ["*"]', 'who = ["certificate:a**"]', 9, "a star stands at the end only"),
        ('on = ""', 'on = ["orders", "events-*"]', 9, "on: 'events-*': a star means nothing here"),
        ('on = ""', 'on = "a*b"', 9, "a star means nothing here"),
        ('who = ["*"]', "who = []", 9, "who: [] is not a text, or a list of at least one text"),
        ('on = ""', "", 9, 'on: None is not a text, or a list of at least one text (on = [""] means every name)'),
        ('on = ""', 'on = ""\nwhen = "now"', 9, "unknown key 'when'"),
        ('"nobody deletes"', '"spark reads"', 9, "another rule has the same name"),
        ('"nobody deletes"', '"it\'s"', 9, "name: has a quotation mark"),
        ('"nobody deletes"', '"a\\u0007b"', 9, "printable characters"),
    ],
)
def test_a_mistake_names_its_rule_and_its_line(before: str, after: str, line: int, expected: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(FILE.replace(before, after, 1), "access.toml")
    (mistake,) = caught.value.mistakes
    assert mistake.startswith(f"access.toml line {line}, rule ")
    assert expected in mistake


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[rule]", "is not TOML"),
        ("[rule]\nname = 'x'", "is not a list of tables"),
        ("rules = []", "unknown key 'rules'"),
        ("rule = [{name = 'x', who = '*', may = 'reed', on = ''}]", "access.toml, rule 'x': may: 'reed'"),
    ],
)
def test_what_is_no_file_of_rules_is_refused(text: str, expected: str) -> None:
    with pytest.raises(RulesError, match=expected.replace("[", r"\[")):
        parse_rules(text, "access.toml")


def test_all_mistakes_are_told_together() -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(FILE.replace('"read"', '"reed"').replace('["*"]', '["x"]'))
    assert len(caught.value.mistakes) == 2


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="cannot read the rules"):
        load_rules(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(RulesError, match="cannot read the rules"):
        load_rules(tmp_path / "bytes.toml")


names = st.text(
    st.characters(exclude_characters="'\"\\", exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")),
    min_size=1,
    max_size=20,
)
texts = st.lists(
    st.text(st.characters(exclude_characters="*", exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn"))),
    min_size=1,
    max_size=3,
)


@given(names, st.sampled_from([Right.READ, ALL_RIGHTS, Right.BLOCK_READ | Right.FORWARD]), st.booleans(), texts)
def test_what_is_written_is_read_again(name: str, rights: Right, forbids: bool, on: list[str]) -> None:
    may, may_not = (NO_RIGHT, rights) if forbids else (rights, NO_RIGHT)
    rule = Rule(name, ("certificate:a b", "token:*"), may, may_not, tuple(on))
    assert parse_rules(rule_text(rule)).rules == (rule,)


def test_a_rule_is_added_and_removed_and_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    added = make_rule("new", ["anonymous"], ["read"], [], ["public/"])
    change_rules(file, (), (added,))
    assert load_rules(file).rules == (SPARK, NOBODY, added)
    assert change_rules(file, ("nobody deletes",), ()) == [NOBODY]
    assert load_rules(file).rules == (SPARK, added)
    change_rules(file, ("new",), ())
    assert file.read_text().startswith("# The rules of the shop.")
    assert "# every night" in file.read_text()
    assert load_rules(file).rules == (SPARK,)


def test_a_wrong_change_leaves_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    with pytest.raises(RulesError, match="same name"):
        change_rules(file, (), (SPARK,))
    with pytest.raises(RulesError, match="has no rule 'x'"):
        change_rules(file, ("x",), ())
    assert file.read_text() == FILE
    odd = FILE.replace('on = ""', 'on = ["""\n[[rule]]\n"""]')
    file.write_text(odd)
    with pytest.raises(RulesError, match="cannot change"):
        change_rules(file, ("spark reads",), ())
    assert file.read_text() == odd


def test_a_rule_of_texts_is_checked() -> None:
    with pytest.raises(RulesError, match="either `may` or `may_not`"):
        make_rule("x", ["*"], [], [], [""])
    with pytest.raises(RulesError, match="'reed' is no right"):
        make_rule("x", ["*"], ["reed"], [], [""])

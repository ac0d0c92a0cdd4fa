"""Goal: every MUST, SHOULD, MAY and WILL of the specification is claimed by a test, and no claim is made up.

Method: the rules are read from `specs/stream_service.md`; the claims from the docstrings of `test_specification_*.py`.
A claim is written `Chapter: "words of the rule"`; it covers the key words that it quotes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

SPECIFICATION = Path(__file__).resolve().parents[4] / "shared" / "specs" / "stream_service.md"
KEY_WORD = re.compile(r"\b(?:MUST|SHOULD|MAY|WILL)\b")
CLAIM = re.compile(r'^\s*(?P<chapter>[^":]+): "(?P<words>.+?)"(?:\.|,|$)', re.MULTILINE)


class Rule(NamedTuple):
    """One key word: its chapter, the paragraph around it with single spaces, and where in that it stands."""

    chapter: str
    paragraph: str
    start: int
    end: int


class Claim(NamedTuple):
    test: str
    chapter: str
    words: str


def rules() -> list[Rule]:
    found = []
    chapter = ""
    for paragraph in re.split(r"\n\s*\n|\n(?=#)", SPECIFICATION.read_text(encoding="utf-8")):
        text = " ".join(paragraph.split())
        if text.startswith("#"):
            chapter = text.lstrip("# ")
            continue
        found += [Rule(chapter, text, *match.span()) for match in KEY_WORD.finditer(text)]
    return found


def claims() -> list[Claim]:
    found = []
    for file in sorted(Path(__file__).parent.glob("test_specification_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                found += [
                    Claim(node.name, " ".join(match["chapter"].split()), " ".join(match["words"].split()))
                    for match in CLAIM.finditer(text)
                ]
    return found


def covers(claim: Claim, rule: Rule) -> bool:
    if claim.chapter != rule.chapter:
        return False
    starts = [match.start() for match in re.finditer(re.escape(claim.words), rule.paragraph)]
    return any(start <= rule.start and rule.end <= start + len(claim.words) for start in starts)


def named(rule: Rule) -> str:
    around = rule.paragraph[max(0, rule.start - 25) : rule.end + 25]
    return re.sub(r"\W+", "-", f"{rule.chapter} {around}").strip("-")


needs_specification = pytest.mark.skipif(
    not SPECIFICATION.is_file(), reason=f"no specification beside the repository ({SPECIFICATION})"
)


@needs_specification
@pytest.mark.parametrize("rule", rules() if SPECIFICATION.is_file() else [], ids=named)
def test_every_rule_is_claimed_by_a_test(rule: Rule) -> None:
    assert any(covers(claim, rule) for claim in claims()), f"no test quotes this rule: {rule.chapter}: {rule.paragraph}"


@needs_specification
@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.test)
def test_every_claim_quotes_a_rule(claim: Claim) -> None:
    assert any(covers(claim, rule) for rule in rules()), f"the specification does not say {claim.words!r}"


@needs_specification
def test_the_rules_are_found() -> None:
    """The specification has some 35 of these words; if the reader above found none, all tests above would pass."""
    assert len(rules()) == sum(1 for _ in KEY_WORD.finditer(SPECIFICATION.read_text(encoding="utf-8"))) > 30
    assert {rule.chapter for rule in rules()} > {"Stream creation", "Updating an index", "Create partitioned stream"}

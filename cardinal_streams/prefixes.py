"""Prefix patterns: regular expressions that choose keys, as in the reference producers. "a/" is a pattern, too.

Producers and consumers match a pattern at the beginning of a key, or of an entry's name; the matched text is the prefix
under which a producer counts the message. (The reference consumer searches anywhere in the name.)"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping

from cardinal_streams.errors import PrefixError

_LITERAL = re.compile(r"[\w:=-]*")
_SIMPLE = re.compile(r"(?![+*?{])(?:[\w:=-]|\[[^\]\[^/\\]+\]|\\[dw]|[+*?]|\{\d+(?:,\d*)?\})*")
_POSIX_CLASS = re.compile(r"\[[^\]]*\[:\^?[a-z]+:\]")


class TopicMap:
    """Maps keys to topics by the prefix patterns of a producer. The first pattern that matches is used.

    Raises `PrefixError` for a pattern that is not a regular expression, matches the empty text, or begins with the text
    of another pattern, which the reference producer refuses."""

    def __init__(self, topics: Mapping[str, str]) -> None:
        plain = [pattern.removeprefix("^") for pattern in topics]
        for index, pattern in enumerate(plain):
            for other in plain[:index]:
                if pattern.startswith(other) or other.startswith(pattern):
                    raise PrefixError(f"the prefixes {other!r} and {pattern!r} overlap")
        self._rules = [(compile_pattern(pattern), topic) for pattern, topic in topics.items()]
        for rule, _ in self._rules:
            if rule.match(""):
                raise PrefixError(f"the prefix {rule.pattern!r} matches the empty text")

    def find(self, key: str) -> tuple[str, str] | None:
        """Returns the beginning of `key` that a pattern matches, and its topic; None if no pattern matches."""
        for rule, topic in self._rules:
            match = rule.match(key)
            if match is not None and match.end() > 0:
                return match.group(), topic
        return None


class Tracked:
    """The entries that a consumer wants of each Batch message: those whose names begin with a match of a pattern.

    `counted`: the prefixes whose keys come in messages of their own. An entry in which nothing is set
    announces 0 such messages if its name is one of these prefixes. Under any other name it is an empty value."""

    def __init__(self, patterns: Iterable[str], counted: TopicMap | None = None) -> None:
        self.patterns = tuple(patterns)
        self._counted = counted
        for pattern in self.patterns:
            compile_pattern(pattern)
        joined = "|".join(f"(?:{pattern})" for pattern in self.patterns)
        self._rule = compile_pattern(joined) if self.patterns else None

    def is_counted(self, name: str) -> bool:
        """Whether this name is that of a counted prefix."""
        found = None if self._counted is None else self._counted.find(name)
        return found is not None and found[0] == name

    def __contains__(self, name: str) -> bool:
        return self._rule is not None and self._rule.match(name) is not None


def can_meet(pattern: str, other: str) -> bool:
    """Whether a text can begin with matches of both patterns. True if the patterns are not simple enough to tell:
    simple ones consist of texts, classes such as [0-9a-f]+, and /."""
    ours, theirs = _parts(pattern), _parts(other)
    for index, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if not (_LITERAL.fullmatch(one) and _LITERAL.fullmatch(two)):
            continue
        is_end = (index == len(ours) - 1 and two.startswith(one)) or (index == len(theirs) - 1 and one.startswith(two))
        if one != two and not is_end:
            return False
    return True


def _parts(pattern: str) -> list[str]:
    # A pattern is not simple if a part can match a slash, or if a slash can be missing or repeated.
    parts = pattern.removeprefix("^").removesuffix("$").removesuffix("\\Z").split("/")
    return parts if all(_SIMPLE.fullmatch(part) for part in parts) else []


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a prefix pattern. Raises `PrefixError` if it is not a regular expression, or if Go (the language of the
    reference producers) and Python would read it differently."""
    if _POSIX_CLASS.search(pattern):
        raise PrefixError(
            f"the prefix {pattern!r} has a class such as [:alpha:], which the real producers know and Python does not: "
            "write its characters out, as [A-Za-z]"
        )
    try:
        # Python warns that it may read a pattern such as "[[]a" in another way one day. Go, the language of the real
        # producers, reads such a pattern as Python does today, so the warning would only confuse its author.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern)
    # Python has errors of its own for a repetition by more than 2**32 and for thousands of open brackets.
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise PrefixError(f"the prefix {pattern!r} is no regular expression: {error}") from error


TRACK_ALL = Tracked((".*",))

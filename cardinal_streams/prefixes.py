"""Prefix patterns. A producer uses them to find the topic of a key, and the prefix under which the key is counted. A
consumer uses them to find the entries that it tracks.

Patterns are regular expressions, as the real producers use them; a plain path such as "a/" is its own pattern. A
producer matches at the beginning of a key, and the text that matched, not the pattern, is the counted prefix. A
consumer searches a pattern anywhere in the name of an entry of a Batch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping

from cardinal_streams.errors import PrefixError

_POSIX_CLASS = re.compile(r"\[[^\]]*\[:\^?[a-z]+:\]")


class TopicMap:
    """The prefix patterns of a producer and their topics. When several patterns match, the first in the given order
    counts.

    Raises `PrefixError` if a pattern is no regular expression, matches the empty text, or begins with another
    pattern (compared as texts, which is what the real producer does).
    """

    __slots__ = ("_rules",)

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
        """The prefix of `key` that is counted, and its topic; None for a key outside of all prefixes."""
        for rule, topic in self._rules:
            match = rule.match(key)
            if match is not None and match.end() > 0:
                return match.group(), topic
        return None


class Tracked:
    """The entries of a Batch that a consumer wants: those with a name in which one of the patterns is found."""

    __slots__ = ("_rule", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        for pattern in self.patterns:
            compile_pattern(pattern)
        joined = "|".join(f"(?:{pattern})" for pattern in self.patterns)
        self._rule = compile_pattern(joined) if self.patterns else None

    def __contains__(self, name: str) -> bool:
        return self._rule is not None and self._rule.search(name) is not None


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern. Raises `PrefixError` for a text that is no regular expression, or that Go and Python read
    differently.
    """
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
    except re.error as error:
        raise PrefixError(f"the prefix {pattern!r} is no regular expression: {error}") from error


TRACK_ALL = Tracked((".*",))

"""The description of an application's data: its key prefixes, their topics, and the schemas of their values.

Specification, "Application Layer Requirements". The command line reads such a description as TOML
(`parse_application`):

    default_topic = "blocks"
    reorg_threshold = 128
    [[prefix]]
    pattern = "a/[0-9a-f]+/d"
    topic = "accounts"
    schema = "rlp(account)"
    tracked = true"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from cardinal_streams.errors import ApplicationError, ResumptionError
from cardinal_streams.limits import DEFAULT_CONSUMER_LIMITS, ConsumerLimits
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import TopicMap, Tracked, can_meet, compile_pattern
from cardinal_streams.produce.producer import Producer
from cardinal_streams.transports.transport import source_of
from ockam.files.parsing import ParseError, convert, parse_toml

REORG_THRESHOLD = 128


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of keys: all keys that begin with a match of the regular expression `pattern`.

    `topic`: the topic of these keys' messages. None: they are sent inside the block's Batch message, on the default
    topic.
    `schema`: the format of the values, as a text for people.
    `check`: a function that raises ValueError for a value of another format.
    `tracked`: whether a consumer receives these keys if it does not choose prefixes itself."""

    pattern: str
    topic: str | None = None
    schema: str = "bytes"
    tracked: bool = True
    check: Callable[[bytes], object] | None = None


class Application:
    """The prefixes, topics and schemas of one application. The first pattern that matches a key is used. Raises
    `PrefixError` and `ApplicationError` for invalid arguments."""

    def __init__(
        self,
        name: str,
        default_topic: str,
        prefixes: tuple[Prefix, ...] = (),
        *,
        reorg_threshold: int = REORG_THRESHOLD,
        limits: ConsumerLimits = DEFAULT_CONSUMER_LIMITS,
    ) -> None:
        if reorg_threshold < 0:
            raise ApplicationError(f"the reorg threshold is {reorg_threshold}")
        self.name = name
        self.default_topic = default_topic
        self.prefixes = prefixes
        self.reorg_threshold = reorg_threshold
        self.limits = limits
        topic_of = {prefix.pattern: prefix.topic for prefix in prefixes if prefix.topic is not None}
        self._counted = TopicMap(topic_of)
        self.topic_of = topic_of
        self.topics = tuple(dict.fromkeys((default_topic, *topic_of.values())))
        for topic in self.topics:
            try:
                source_of(topic, 0)
            except ResumptionError as error:
                raise ApplicationError(f"topic {topic!r} is empty, or contains ';' or '='") from error
        self._rules = [(compile_pattern(prefix.pattern), prefix) for prefix in prefixes]

    def producer(self) -> Producer:
        """Returns a new producer that uses this application's topics."""
        return Producer(self.default_topic, self.topic_of, limits=self.limits.message)

    def tracked(self, chosen: Tracked | None = None) -> Tracked:
        """Returns the entries of blocks that a consumer receives: `chosen`, or by default the entries of all prefixes
        whose `tracked` is true. If every prefix is tracked, these are all entries."""
        patterns: Iterable[str] = (prefix.pattern for prefix in self.prefixes if prefix.tracked)
        if all(prefix.tracked for prefix in self.prefixes):
            patterns = (".*",)
        return Tracked(patterns if chosen is None else chosen.patterns, self._counted)

    def topics_of(self, tracked: Tracked) -> tuple[str, ...]:
        """Returns the topics that a consumer of these entries must read: the default topic, and the topics of the
        entries' prefixes."""
        wanted = {
            topic
            for prefix, topic in self.topic_of.items()
            if any(can_meet(pattern, prefix) for pattern in tracked.patterns)
        }
        return tuple(topic for topic in self.topics if topic == self.default_topic or topic in wanted)

    def unmet(self, tracked: Tracked) -> tuple[str, ...]:
        """Returns the patterns of `tracked` that no key of this application can match; none if it has no prefixes."""
        known = [prefix.pattern for prefix in self.prefixes]
        return tuple(p for p in tracked.patterns if known and not any(can_meet(p, each) for each in known))

    def find_prefix(self, key: str) -> Prefix | None:
        """Returns the first prefix whose pattern matches the beginning of this key, or None."""
        return next((prefix for rule, prefix in self._rules if rule.match(key)), None)

    def problems(self, batch: CompleteBatch) -> list[str]:
        """Returns a text for each value of a block that contradicts the schema of its key's prefix."""
        found = []
        for key, value in batch.values.items():
            prefix = self.find_prefix(key)
            if prefix is None or prefix.check is None:
                continue
            try:
                prefix.check(value)
            except ValueError as error:
                found.append(f"{key}: no {prefix.schema}: {error}")
        return found


class ApplicationText(msgspec.Struct, forbid_unknown_fields=True):
    default_topic: str
    reorg_threshold: int = REORG_THRESHOLD
    prefix: list[Prefix] = []


def parse_application(name: str, text: str) -> Application:
    """Reads the description of an application in TOML. Raises `ApplicationError`; `PrefixError` for a bad pattern."""
    try:
        found = convert(parse_toml(text), ApplicationText)
    except ParseError as error:
        raise ApplicationError(f"{name} describes no application: {error}") from error
    return Application(name, found.default_topic, tuple(found.prefix), reorg_threshold=found.reorg_threshold)

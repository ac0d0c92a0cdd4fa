"""Rules: who is allowed to do what, as pure decisions.

A rule allows rights or forbids them, to identities, on names that begin with a prefix. A right that no rule allows is
refused, and a rule that forbids a right is stronger than every rule that allows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ockam.files.text_order import prefix_end
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import ALL_RIGHTS, NO_RIGHT, Demand, Right, rights_text

EVERYBODY = "*"
KNOWN_IDENTITIES_MAX = 10_000
KNOWN_CHARACTERS_MAX = 4 * 1024 * 1024
"""The most characters of all remembered names; all are forgotten when there are more. Peers choose the names."""
KNOWN_NAME_CHARACTERS = 64
KNOWN_NAME_CHARACTERS_MAX = 512
"""The most characters of a remembered name. The rights on a longer one are computed for each message."""
SHOWN_NAME_CHARACTERS_MAX = 64


class Rule(msgspec.Struct, frozen=True):
    """One rule. It applies to an identity if a pattern of `who` matches, and to a name if a prefix of `on` matches.

    name: the name of the rule, by which refusals are explained.
    who: patterns of identities: a whole identity (`certificate:alice`), its beginning with a star (`token:spark-*`,
    `certificate:*`), or `*` for everybody on a connection. No pattern matches this node's own workers.
    may, may_not: the rights that the rule allows, or forbids.
    on: the beginnings of names; "" is the beginning of every name.
    keeper: if it is set, the rule applies to every identity except this one, also to the node's own workers, and `who`
    is not used. With it, only the block node can change its streams. None in all rules of a file.
    reason: the text that explains a refusal by the rule; if it is empty, the explanation names the rule."""

    name: str
    who: tuple[str, ...]
    may: Right = NO_RIGHT
    may_not: Right = NO_RIGHT
    on: tuple[str, ...] = ("",)
    keeper: Identity | None = None
    reason: str = ""

    def applies_to(self, identity: Identity) -> bool:
        if self.keeper is not None:
            return identity != self.keeper
        text = str(identity)
        found = (text.startswith(each[:-1]) if each.endswith("*") else text == each for each in self.who)
        return identity.source != "local" and any(found)


OWN_WORKERS = Rule("the node's own workers", (), may=ALL_RIGHTS)
"""The built-in rule that allows everything to this node's own workers."""


ANYTHING_TO_ANYBODY = (Rule("everything is allowed", (EVERYBODY,), may=ALL_RIGHTS),)


class Decision(NamedTuple):
    """The answer to one demand, with the rule that decided (None: no rule allows it) and the reason of a refusal."""

    allowed: bool
    rule: Rule | None
    reason: str

    @property
    def explanation(self) -> str:
        return self.rule.reason if self.rule is not None and self.rule.reason else self.reason


class KnownNames:
    """Counts the names that the `Grants` of all identities remember. When there are too many, all are forgotten.

    Invariant: the remembered names and KNOWN_NAME_CHARACTERS for each are at most KNOWN_CHARACTERS_MAX characters."""

    __slots__ = ("_characters", "_holders")

    def __init__(self) -> None:
        self._characters = 0
        self._holders: dict[int, dict[str, int]] = {}

    def has_room(self, name: str, holder: dict[str, int]) -> bool:
        """Counts a name that the caller then adds to `holder`. If there are too many in all, empties all holders.
        Returns False for a name that must not be remembered."""
        if len(name) > KNOWN_NAME_CHARACTERS_MAX:
            return False
        size = len(name) + KNOWN_NAME_CHARACTERS
        if self._characters + size > KNOWN_CHARACTERS_MAX:
            for each in self._holders.values():
                each.clear()
            self._holders.clear()
            self._characters = 0
        self._characters += size
        self._holders[id(holder)] = holder
        return True


class Grants:
    """The rules that apply to one identity, and the rights that they give on each name."""

    __slots__ = ("_all_known", "_known", "allow", "deny", "rules")

    def __init__(self, rules: Sequence[Rule], known: KnownNames | None = None) -> None:
        self._all_known = known if known is not None else KnownNames()
        self.rules = tuple(rules)
        self.allow = [(prefix, int(rule.may)) for rule in rules if rule.may for prefix in rule.on]
        self.deny = [(prefix, int(rule.may_not)) for rule in rules if rule.may_not for prefix in rule.on]
        self._known: dict[str, int] = {}

    def rights_on(self, name: str) -> int:
        known = self._known.get(name)
        if known is None:
            known = 0
            for prefix, rights in self.allow:
                if name.startswith(prefix):
                    known |= rights
            # The forbidding rules come second, because they are stronger.
            for prefix, rights in self.deny:
                if name.startswith(prefix):
                    known &= ~rights
            if self._all_known.has_room(name, self._known):
                self._known[name] = known
        return known

    def find_next(self, rights: int, name: str) -> str | None:
        """Returns the first name, not before `name` in sorted order, on which one of these rights is given, or None."""
        if self.rights_on(name) & int(rights):
            return name
        return next((place for place in self._places() if place > name and self.rights_on(place) & int(rights)), None)

    def edges(self, rights: int) -> list[str]:
        """Returns the sorted names at which the answer changes: one of these rights is given from the first name on,
        none from the second name on, and so on in turn."""
        found: list[str] = []
        for place in self._places():
            if bool(self.rights_on(place) & int(rights)) != bool(len(found) % 2):
                found.append(place)
        return found

    def _places(self) -> list[str]:
        """Returns, sorted, the only names at which rights change: each prefix, and the end of its names."""
        prefixes = {"", *(prefix for prefix, _ in (*self.allow, *self.deny))}
        return sorted(prefixes | {end for prefix in prefixes if (end := prefix_end(prefix)) is not None})


class Rules:
    def __init__(self, rules: Iterable[Rule], limits: Mapping[str, Mapping[str, int | None]] | None = None) -> None:
        self.rules = tuple(rules)
        self.limits = {pattern: dict(table) for pattern, table in (limits or {}).items()}
        self._grants: dict[Identity, Grants] = {}
        self._known = KnownNames()

    def __len__(self) -> int:
        return len(self.rules)

    def grants(self, identity: Identity) -> Grants:
        found = self._grants.get(identity)
        if found is None:
            rules = [rule for rule in self.rules if rule.applies_to(identity)]
            if identity.source == "local":
                rules.insert(0, OWN_WORKERS)
            # A caller can still have forgotten grants. These go on to count their names in the old object.
            if len(self._grants) >= KNOWN_IDENTITIES_MAX:
                self._grants.clear()
                self._known = KnownNames()
            found = self._grants[identity] = Grants(rules, self._known)
        return found

    def allows(self, identity: Identity, demand: Demand) -> bool:
        grants = self.grants(identity)
        if demand.name is None:
            # A forbidding rule with a longer prefix than the allowing one forbids only some of the allowed names. So it
            # is enough to look at the allowed prefixes themselves.
            rights = int(demand.rights)
            return any(given & rights and grants.rights_on(prefix) & rights for prefix, given in grants.allow)
        return bool(grants.rights_on(demand.name) & int(demand.rights))

    def decide(self, identity: Identity, demand: Demand) -> Decision:
        grants, (rights, name) = self.grants(identity), demand
        allowing = [rule for rule in grants.rules if rule.may & rights and _covers(rule, name)]
        if self.allows(identity, demand):
            # Of several allowing rules, the decisive one is the first whose right no rule forbids.
            left = rights if name is None else grants.rights_on(name) & rights
            return Decision(True, next(rule for rule in allowing if rule.may & left), "")
        # Without a name, a forbidding rule is the reason only if it takes what another rule allows.
        forbidding = grants.rules if name is not None or allowing else ()
        denying = next((rule for rule in forbidding if rule.may_not & rights and _covers(rule, name)), None)
        where = "anything" if name is None else repr(name[:SHOWN_NAME_CHARACTERS_MAX]) if name else "every name"
        what = "any right" if rights == ALL_RIGHTS else rights_text(rights)
        why = "no rule allows it" if denying is None else denying.reason or f"rule {denying.name!r} forbids it"
        reason = f"{what} on {where} for {str(identity)[:SHOWN_NAME_CHARACTERS_MAX]}: {why}"
        return Decision(False, denying, reason)


def _covers(rule: Rule, name: str | None) -> bool:
    return name is None or name.startswith(rule.on)

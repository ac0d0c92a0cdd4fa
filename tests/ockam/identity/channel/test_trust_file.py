"""Goal: no change of the trust list is lost. Method: two threads change the same file; each takes the lock by a file
descriptor of its own, as two commands do.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ockam.identity.channel.trust_list import change_trusted, load_trusted

ROUNDS = 40


def test_two_who_change_the_list_at_once_both_succeed(tmp_path: Path) -> None:
    file = tmp_path / "data" / "trusted_identities"
    leaving = [bytes([1, number]) * 16 for number in range(ROUNDS)]
    coming = [bytes([2, number]) * 16 for number in range(ROUNDS)]
    change_trusted(file, lambda trusted: dict.fromkeys(leaving, ""))

    def add_all() -> None:
        for key in coming:
            change_trusted(file, lambda trusted, key=key: {**trusted, key: "new"})  # type: ignore[misc]

    def remove_all() -> None:
        for key in leaving:
            change_trusted(file, lambda trusted, key=key: {each: trusted[each] for each in trusted if each != key})  # type: ignore[misc]

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add_all), threads.submit(remove_all)]:
            done.result()
    assert load_trusted(file) == dict.fromkeys(coming, "new")


def test_nothing_is_made_when_nobody_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "mistyped" / "trusted_identities"
    assert change_trusted(file, lambda trusted: trusted) == {}
    assert not file.parent.exists()

"""Applications: prefixes, topics and schemas; the Ethereum layout over real blocks; descriptions in TOML."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cardinal_streams.application import Application, Prefix, parse_application
from cardinal_streams.errors import ApplicationError, PrefixError
from cardinal_streams.evm import check_rlp_list, evm
from cardinal_streams.payload import CompleteBatch, parse_payloads
from tests.cardinal_streams.chains import APPLICATION
from tests.cardinal_streams.helpers import block, payload

TOML = """
default_topic = "blocks"
reorg_threshold = 16

[[prefix]]
pattern = "a/[0-9]+/"
topic = "accounts"
schema = "JSON"

[[prefix]]
pattern = "x/"
tracked = false
"""


def with_values(**values: bytes) -> CompleteBatch:
    made = block("a", "g", 1, 1)
    made.values.update({key.replace("_", "/"): value for key, value in values.items()})
    return made


class TestApplication:
    def test_its_topics_and_what_it_tracks(self) -> None:
        assert APPLICATION.topics == ("default", "ta", "tb", "tq")
        tracked = APPLICATION.tracked()
        assert "a/1" in tracked
        assert "q/1" not in tracked

    def test_everything_is_tracked_where_nothing_is_left_out(self) -> None:
        assert "anything" in Application("a", "t", (Prefix(pattern="a/"),)).tracked()

    def test_its_producer_uses_the_topics(self) -> None:
        outgoing = APPLICATION.producer().add_block(payload("a", "g", 1, updates={"a/1": b"1", "z": b"2"}))
        assert {topic: len(records) for topic, records in outgoing.items()} == {"ta": 1, "default": 1}

    def test_values_that_are_not_as_their_schema_says_are_told(self) -> None:
        (problem,) = APPLICATION.problems(with_values(a_1=b"\xff", a_2=b"text", b_1=b"\xff", z=b"\xff"))
        assert problem.startswith("a/1: no text: ")

    def test_an_impossible_one_is_refused(self) -> None:
        with pytest.raises(PrefixError, match="overlap"):
            Application("a", "t", (Prefix(pattern="a/", topic="x"), Prefix(pattern="a/b", topic="y")))
        with pytest.raises(PrefixError, match="no regular expression"):
            Application("a", "t", (Prefix(pattern="("),))
        with pytest.raises(ApplicationError, match="threshold is -1"):
            Application("a", "t", reorg_threshold=-1)
        with pytest.raises(ApplicationError, match="topic 't;x' is empty, or contains"):
            Application("a", "t;x")


class TestToml:
    def test_it_is_read(self) -> None:
        application = parse_application("mine", TOML)
        assert (application.name, application.topics) == ("mine", ("blocks", "accounts"))
        assert application.reorg_threshold == 16
        found = application.find_prefix("a/17/b")
        assert found is not None
        assert found.schema == "JSON"
        assert "x/1" not in application.tracked()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "default_topic = 1",
            "default_topic = 'a'\nother = 1",
            "default_topic = 'a'\n[[prefix]]\ntopic = 'b'",
            "default_topic",
        ],
    )
    def test_what_describes_none_is_refused(self, text: str) -> None:
        with pytest.raises(ApplicationError, match="mine describes no application"):
            parse_application("mine", text)


class TestEthereum:
    def test_real_blocks_are_as_the_layout_says(self, shared_dir: Path) -> None:
        """All 23,174 real values have a prefix, and are what its schema says."""
        text = gzip.decompress((shared_dir / "data" / "cardinal" / "ethereum_batches.json.gz").read_bytes())
        application = evm()
        checked = 0
        for each in parse_payloads(text):
            made = block("a", "g", each.number, each.weight)
            made.values.update(each.updates)
            assert application.problems(made) == []
            assert all(application.find_prefix(key) for key in each.updates)
            checked += len(each.updates)
        assert checked == 23_174

    def test_damaged_values_are_found(self, shared_dir: Path) -> None:
        """Each value of a real block with RLP, cut short or lengthened by a byte."""
        text = gzip.decompress((shared_dir / "data" / "cardinal" / "ethereum_batches.json.gz").read_bytes())
        whole = max(parse_payloads(text), key=lambda each: len(each.updates))
        for key, value in whole.updates.items():
            if "/h" in key or "/t/" in key or "/r/" in key or "/l/" in key or "/n/" in key:
                for damaged in (value[:-1], value + b"\x01"):
                    made = block("a", "g", 1, 1)
                    made.values[key] = damaged
                    assert len(evm().problems(made)) == 1, key

    def test_it_has_six_topics_and_the_chains_id_in_them(self) -> None:
        topics = evm(137).topics
        assert len(topics) == 6
        assert all(topic.startswith("evm-137-") for topic in topics)
        found = evm(137).find_prefix("c/89/n/1f")
        assert found is not None
        assert found.schema == "block hash"

    @pytest.mark.parametrize(
        "value", [b"", b"\x80", b"\xc1", b"\xc1\x80\x80", b"\xf8\x00", b"\xf9\x01", b"\xc2\xc2\x80"]
    )
    def test_what_is_no_list(self, value: bytes) -> None:
        with pytest.raises(ValueError, match="RLP"):
            check_rlp_list(value)

    def test_a_million_lists_in_each_other_are_read(self) -> None:
        """Goal: depth is the sender's choice, and must not end the process. 55 levels are the deepest short ones."""
        value = b"\xc0"
        for _ in range(55):
            value = bytes([0xC0 + len(value)]) + value
        check_rlp_list(value)
        assert len(value) == 56
        for _ in range(3_000):
            size = len(value).to_bytes(2, "big").lstrip(b"\0")
            value = bytes([0xF7 + len(size)]) + size + value
        check_rlp_list(value)

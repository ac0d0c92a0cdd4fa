"""Goal: a message in CBOR is shown with its values, and no value looks like another one.

Method: bytes that the library cbor2 makes, over real HTTP; the text is read back by the JSON parser of the standard
library, and what JSON lacks is compared with the notation of RFC 8949. The tests with cbor2 are skipped without it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stream_client import connect
from stream_node.doors.dashboard.decoding import CHARACTERS_MAX, decode, show_value
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node

ORDER = {
    "order": 7,
    "lines": [{"sku": "ä\u202e\n", "price": 12.5}, {}],
    "paid": True,
    "more": None,
    "big": 2**70,
    "no": [],
}


@pytest.fixture
def cbor2() -> Any:
    return pytest.importorskip("cbor2", reason="the extra `spark` is not installed")


def test_an_old_library_is_named(cbor2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cbor2 5 does not take the arguments that bound the decoding."""
    monkeypatch.setattr(cbor2, "load", lambda source: None)
    shown = decode(b"\xa0", "cbor", 10_000)
    assert shown.view == "hex"
    assert "before version 6" in shown.note


def test_json_parses_what_is_shown(cbor2: Any) -> None:
    for data in (cbor2.dumps(ORDER), cbor2.dumps(cbor2.CBORTag(55_799, ORDER))):
        for is_short in (True, False):
            shown = decode(data, "auto", 10_000, is_short=is_short)
            assert (shown.view, shown.note, json.loads(shown.text)) == ("cbor", "", ORDER)
            assert "\u202e" not in shown.text
            assert ("\n" in shown.text) != is_short


def test_what_json_lacks_is_told_apart(cbor2: Any) -> None:
    """Bytes are no text, numbers as keys are no text, and not-a-number is no null."""
    moment = datetime(2026, 11, 21, 8, tzinfo=UTC)
    for value, text in (
        ({"a": b"ab"}, "{ \"a\": h'6162' }"),
        ({1: "1", "1": 1, b"k": {}}, '{ 1: "1", "1": 1, h\'6b\': {} }'),
        ({True: None}, "{ true: null }"),
        ([float("nan"), float("inf"), -float("inf"), 1e300], "[ NaN, Infinity, -Infinity, 1e+300 ]"),
        ([cbor2.undefined, cbor2.CBORSimpleValue(99)], "[ undefined, simple(99) ]"),
        (cbor2.CBORTag(24, [b"\x01"]), "24([ h'01' ])"),
        ({(1, 2): []}, "{ [ 1, 2 ]: [] }"),
        (moment, '"2026-11-21T08:00:00+00:00"'),
        (2**20_000, hex(2**20_000)),
    ):
        shown = decode(cbor2.dumps(value), "cbor", 10_000, is_short=True)
        assert (shown.view, shown.text) == ("cbor", text), shown
    assert decode(cbor2.dumps(1) * 2, "cbor", 100).note == "this is not cbor: 1 bytes follow the first value"


async def test_the_pages_show_cbor(cbor2: Any, tmp_path: Path) -> None:
    """The list and the page of a message show it, and the raw bytes are those that were pushed."""
    data = cbor2.dumps({"<b>order</b>": [7, b"\x00"]})
    async with http_node(tmp_path) as node, node.client() as client:
        async with connect(node.running.address) as streams:
            await (await streams.create("orders")).push(data)
        rows = await get(client, "/messages", stream="orders")
        assert "{ \"<b>order</b>\": [ 7, h'00' ] }" in rows.text
        page = await get(client, "/message", stream="orders", index=0, view="cbor")
        assert "{ \"<b>order</b>\": [ 7, h'00' ] }" in page.text
        raw = await client.get("/dashboard/message/raw", params={"stream": "orders", "index": 0})
        assert raw.content == data


@pytest.mark.parametrize("value", [[0] * 200_000, "x" * 200_000, {n: {n: [n]} for n in range(50_000)}])
def test_a_long_value_is_shown_as_far_as_pages_show(value: Any) -> None:
    """The text stops soon after the limit, however many values follow, and it begins like the whole text."""
    cut, whole = show_value(value, CHARACTERS_MAX), show_value(value, 10**9)
    assert CHARACTERS_MAX < len(cut) <= len(whole)
    assert whole.startswith(cut)


def test_values_without_cbor() -> None:
    """Avro has the same notation, and sets are written with their members."""
    assert show_value({"a": {1}, "b": bytearray(b"\x01"), "c": ()}, 100) == (
        '{\n  "a": {\n    1\n  },\n  "b": h\'01\',\n  "c": []\n}'
    )

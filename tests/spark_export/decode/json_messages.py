"""Messages for tests of JSON decoding: objects of fitting and unfitting values, written in many ways, some damaged."""

from __future__ import annotations

import json
import random
from typing import Any

from pyspark.sql.types import ArrayType, DoubleType, IntegerType, MapType, StringType, StructType


def schema(**columns: Any) -> StructType:
    """Columns by name, each with a type or its name in Spark's JSON, such as `long` or `decimal(10,2)`."""
    made = StructType()
    for name, kind in columns.items():
        made = made.add(name, kind)
    return made


FLAT = schema(a="integer", l="long", s="string", d="double", b="boolean", t="timestamp", y="date")
WIDE = schema(
    a="short",
    f="float",
    m="decimal(10,2)",
    q="decimal(38,18)",
    n="timestamp_ntz",
    o=schema(a="integer", s="string", r=ArrayType(IntegerType())),
    r=ArrayType(schema(a="integer")),
    k=MapType(StringType(), DoubleType()),
)
NESTED = schema(
    a="integer",
    f="float",
    m="decimal(10,2)",
    q="decimal(38,18)",
    o=schema(a="integer", s="string", r=ArrayType(IntegerType())),
    r=ArrayType(schema(a="integer")),
    s=ArrayType(StringType()),
)
"""Types that Arrow reads too, inside each other."""
NAMES = [
    "a",
    "l",
    "s",
    "d",
    "b",
    "t",
    "y",
    "f",
    "m",
    "q",
    "n",
    "x",
    "o",
    "r",
    "k",
    "z",
    "A",
    "ab",
    "",
    "é",
    "_corrupt_record",
]
NUMBERS = [
    *("0", "-0", "1", "-1", "7", "127", "32767", "32768", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "123456789012345678901234567890", "1.5", "1.0", "-0.0", "1e2"),
    *("1E-3", "1e400", "-1e400", "0.1", "1.005", "2.675", "99999999.995", "16777217", "1.00000017881393432617187499"),
    *("1e-45", "1e22", "123456.789e3", "0.001", "0.0009", "9999999.0", "10000000.0", "5e-324", "2e-44", "1e23", "3e10"),
    *("NaN", "Infinity", "-Infinity", "+Infinity", "-INF", "+INF", "INF", "01", "1.", ".5", "+5", "-", "1e", "0x1"),
]
TEXTS = [
    *(
        "",
        " ",
        "x",
        "true",
        "5",
        "1.25",
        "1,000.5",
        "-7",
        "+5",
        "1e3",
        "NaN",
        "-INF",
        "Infinity",
        "aGk=",
        "aGk",
        "aGVsbG8h",
    ),
    *("2026-01-05", "2026-1-5", "2026", "2026-02-30", "2024-02-29", "2026-01-05 10:00:00", "2026-01-05T10:00:00Z"),
    *(
        "2026-01-05T10:00:00.123456789+02:00",
        "2026-01-05T23:59:59.9 Europe/Berlin",
        "2026-03-29T02:30:00 Europe/Berlin",
    ),
    *(
        "2026-10-25T02:30:00 Europe/Berlin",
        "2026-01-05T10:00Z",
        "2026-01-05 10:00:00GMT+01:00",
        "1582-10-10",
        "+12026-01-01",
    ),
    *(
        "2026-01-05T10:00:00PST",
        "2026-01-05T10:00:00+1:5",
        "2026-01-05T10:00:00+19:00",
        "2026-01-05T24:00:00",
        "0001-01-01",
    ),
    *("2026-01-05T10:00:00 Nowhere/Land", " 2026-01-05\t", "2026-13-01", "2026-01-05T10:00:00UTC+3", "-0044-03-15"),
    *("äöü €", "🎉", 'a"b\\c/d', "line\nbreak\ttab", "\x1f\x7f", "{", "}]", "a,b", "\u2028"),
]
ODD = [
    *(b"", b" \t\r\n", b"null", b"5", b'"x"', b"[]", b'[{"a":5} {"a":6}', b"]", b'[{"a":1}]', b'{"a":1}{"a":2}'),
    *(b'{"a":1} x', b'\xef\xbb\xbf{"a":1}', b"{'a':1,'s':'it\\'s \"so\"'}", b"{a:1}", b'{"a":1,}', b'{"a":1', b'{"a":'),
    *(b'{"a":1,"l":tru,"s":"k"}', b'{"s":"a\nb"}', b'{"s":"a\\qb"}', b'{"s":"\\ud800"}', b'{"s":"\\ud83d\\ude00"}'),
    *(
        b'{"s":"\xff\xc3"}',
        b'{"s":"\xe2\x82"}',
        b'{"s":"\xf0\x9f\x98x"}',
        b'{"s":"\xed\xa0\x80\xed\xa0"}',
        b'\x00{"a":1}',
    ),
    *(b'{"s":"\xc0\x80\xf4\x90\x80\x80\xf8"}', b'{"\\u0061":1}', b'{"a":1/*c*/}', b'{"a":1 "l":2}', b'{"a":1}\x00'),
    *(b'{"a":1,"a":2}', b'{"a":1,"a":"x"}', b'{"a":"x","a":2}', b'{"a":1,"a":null}', b'{"o":{"a":1,"a":"x"}}'),
    *(b'{"k":{"x":1,"x":2}}', b'{"k":{"x":"no","y":1}}', b'{"r":[{"a":1},{"a":"x"},null]}', b'{"r":[{"a":1},5]}'),
    *(b'{"o":{"r":[1,"x"],"s":{"q" : [1 , 2.50,"\xc3\xa9\\n"]}}}', b'{"s":[ 1 ,"a\\u0041", null,true ]}', b'{"s":{}}'),
    *(
        b'{"o":{"a":tru}}',
        b'{"o":"","r":"","k":""}',
        b'{"x":""}',
        b'{"a":1}\n{"a":2}',
        b',{"a":1}',
        b'{"a":1}]',
        b'{"a":}',
    ),
    *(b'{"z":' + b"[" * 500 + b"]" * 500 + b',"a":3}', b'{"s":' + b'{"q":' * 500 + b"1" + b"}" * 501, b"\xff\xfe{"),
    *(b'{"d":1' + b"0" * 999 + b"}", b'{"z":"' + b"0" * 1500 + b'","a":3}'),
    *(b'{"s":{"x":"\\ud800"}}', b'{"s":[{"\\udc00\\ud83d\\ude00":1}]}'),
]
"""Messages that are no plain objects. Each is a message of its own, and none may reach another."""


def blank(chance: random.Random) -> str:
    return chance.choice(["", "", "", " ", "\n", "\t ", "\r\n"])


def text(chance: random.Random, value: str) -> str:
    """A text as a JSON string: with non-ASCII characters as they are, or as escapes."""
    return json.dumps(value, ensure_ascii=chance.random() < 0.3)


def value(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(NUMBERS[:31]) if chance.random() < 0.97 else chance.choice(NUMBERS)
    if kind < 0.75 or depth > 2:
        return text(chance, chance.choice(TEXTS))
    if kind < 0.85:
        return chance.choice(["true", "false", "null"])
    if kind < 0.92:
        inner = [value(chance, depth + 1) for _ in range(chance.randrange(4))]
        return f"[{blank(chance)}{','.join(inner)}]"
    return members(chance, depth + 1)


def members(chance: random.Random, depth: int = 0) -> str:
    """An object as text. Its members have names of columns mostly; some occur twice."""
    count = chance.randrange(5)
    parts = [
        f"{blank(chance)}{text(chance, chance.choice(NAMES))}{blank(chance)}:{blank(chance)}{value(chance, depth)}"
        for _ in range(count)
    ]
    return f"{{{','.join(parts)}{blank(chance)}}}"


def message(chance: random.Random) -> bytes:
    """An object, in one case of six a damaged one: cut, or with a byte changed, left out or added."""
    if chance.random() < 0.05:
        return chance.choice(ODD)
    whole = (blank(chance) + members(chance) + blank(chance)).encode()
    if chance.random() > 0.15:
        return whole
    at = chance.randrange(len(whole))
    extra = chance.choice([b"", b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\n", b"1", b"'", b"\xff", b"\xc3"])
    return [whole[:at], whole[:at] + extra + whole[at + 1 :], whole[:at] + extra + whole[at:]][chance.randrange(3)]

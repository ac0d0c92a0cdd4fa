"""Goal: every store keeps the two promises of `spark_export/store/store.py`, and reads back what was put.

Method: the same tests on a folder, on two real S3 servers, and on a file system of pyarrow that renames without
overwriting, which stands for HDFS. What stands in S3 is looked at with pyarrow, not with the library that wrote it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")

from pyarrow import fs

from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, PlaceRefused, StoreError
from spark_export.store.open import open_store
from spark_export.store.options import complete_options
from spark_export.store.place import parse_place
from spark_export.store.store import Store
from spark_export.store.versioned_store import VersionedStore
from tests.support.s3_server import CREDENTIALS, Fault, Request, S3Server, fault_proxy

WRITERS = 8


class NoOverwrite(fs.LocalFileSystem):
    """A folder in which a rename fails where the name is taken, as in HDFS."""

    def move(self, src: str, dest: str) -> None:
        os.link(src, dest)
        os.unlink(src)


@pytest.fixture(params=["folder", "moto_server", "seaweedfs_server", "renames"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "folder":
        yield open_store(tmp_path / "store")
        return
    if request.param == "renames":
        place = parse_place(tmp_path / "store")
        made = VersionedStore(place, complete_options(place, {}))
        made.data.filesystem = NoOverwrite()
        yield made
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server: S3Server = request.getfixturevalue(request.param)
    bucket = server.make_bucket(f"contract-{abs(hash(tmp_path)):x}")
    yield open_store(f"s3://{bucket}/a/lake", {"endpoint": server.endpoint})


def race(work: Callable[[int], Any]) -> list[Any]:
    """What each of WRITERS threads got that begin together: its result, or its error."""
    barrier = threading.Barrier(WRITERS)

    def one(number: int) -> Any:
        barrier.wait()
        try:
            return work(number)
        except (ObjectExists, ObjectChanged) as error:
            return error

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(one, range(WRITERS)))


def test_what_is_put_is_read(store: Store) -> None:
    tag = store.create("_x/one", b"1")
    assert store.read_tagged("_x/one") == store.read_tagged("_x/one")
    assert (store.read("_x/one"), store.read_tagged("_x/one").tag) == (b"1", tag)
    second = store.swap("_x/one", b"22", tag)
    assert (store.read("_x/one"), store.read_tagged("_x/one").tag) == (b"22", second)
    assert second != tag


def test_what_is_not_there_is_told(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="_x/none is not there"):
        store.read("_x/none")
    with pytest.raises(ObjectMissing):
        store.data.open_input("_x/none")
    assert list(store.list_objects()) == []
    store.delete(["_x/none"])


def test_an_object_is_made_once(store: Store) -> None:
    store.create("log/1", b"first")
    with pytest.raises(ObjectExists, match="log/1"):
        store.create("log/1", b"second")
    assert store.read("log/1") == b"first"
    assert store.create("log/1", b"first") == store.read_tagged("log/1").tag, "a put whose answer was lost"


def test_an_object_is_replaced_by_who_knows_it(store: Store) -> None:
    tag = store.create("ledger", b"0")
    new = store.swap("ledger", b"1", tag)
    with pytest.raises(ObjectChanged, match="ledger"):
        store.swap("ledger", b"2", tag)
    assert store.swap("ledger", b"1", tag) == new, "a put whose answer was lost"
    store.delete(["ledger"])
    with pytest.raises(ObjectChanged):
        store.swap("ledger", b"3", new)
    assert list(store.list_objects()) == []


def test_one_of_many_makes_it(store: Store) -> None:
    for number in range(5):
        name = f"log/{number}"
        got = race(partial(lambda name, writer: store.create(name, b"writer %d" % writer), name))
        (winner,) = [writer for writer, each in enumerate(got) if isinstance(each, str)]
        assert store.read(name) == b"writer %d" % winner


def test_one_of_many_replaces_it(store: Store) -> None:
    tag = store.create("ledger", b"0")
    for _ in range(5):
        got = race(partial(lambda tag, writer: store.swap("ledger", b"%s by %d" % (tag.encode(), writer), tag), tag))
        (winner,) = [writer for writer, each in enumerate(got) if isinstance(each, str)]
        assert store.read("ledger") == b"%s by %d" % (tag.encode(), winner)
        tag = got[winner]


@pytest.mark.parametrize("name", ["ledger", "new"])
def test_a_slow_writer_finds_a_number_free_that_was_used_before(tmp_path: Path, name: str) -> None:
    """Goal: a rename to a version that others used and removed replaces nothing, and is not reported as done.

    Method: three other writes, of which the last ones remove the first, while a writer is about to rename its file.
    """
    place = parse_place(tmp_path / "store")
    slow, others = (VersionedStore(place, complete_options(place, {})) for _ in range(2))
    others.data.filesystem = NoOverwrite()
    tag = others.create("ledger", b"0")

    class Slow(NoOverwrite):
        def move(self, src: str, dest: str) -> None:
            now = tag if name == "ledger" else others.create(name, b"1")
            for each in (b"2", b"3", b"4"):
                now = others.swap(name, each, now)
            super().move(src, dest)

    slow.data.filesystem = Slow()
    write = partial(slow.swap, tag=tag) if name == "ledger" else slow.create
    with pytest.raises((ObjectChanged, ObjectExists), match=name):
        write(name, b"mine")
    assert others.read(name) == b"4"
    assert others.swap(name, b"5", others.read_tagged(name).tag) == others.read_tagged(name).tag
    assert b"mine" not in {path.read_bytes() for path in (tmp_path / "store").iterdir()}


def test_a_listing_has_every_object_in_order(store: Store) -> None:
    names = [f"log/{number:020d}.json" for number in range(5)]
    for name in reversed(names):
        store.create(name, name.encode())
    with store.data.open_output("data/stream=ü a%2F/part-1") as file:
        file.write(b"x" * 100)
    assert [each.name for each in store.list_objects("log")] == names
    assert [each.name for each in store.list_objects("log", after=names[2])] == names[3:]
    found = {each.name: each.size_bytes for each in store.list_objects()}
    assert found == {name: len(name) for name in names} | {"data/stream=ü a%2F/part-1": 100}
    assert all(each.modified_us > 1_700_000_000_000_000 for each in store.list_objects())
    store.delete([*names, "data/stream=ü a%2F/part-1"])
    assert list(store.list_objects()) == []


def test_a_file_is_there_when_it_is_closed(store: Store) -> None:
    """Large enough to be sent to S3 in parts."""
    content = os.urandom(12_000_000)
    file = store.data.open_output("data/large")
    file.write(content)
    if store.place.scheme == "s3":
        assert list(store.list_objects()) == []
    file.close()
    assert [(each.name, each.size_bytes) for each in store.list_objects()] == [("data/large", len(content))]
    with store.data.open_input("data/large") as opened:
        assert opened.read() == content


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("s3_environment")
class TestFaults:
    """What a network and a store do to requests, made by a proxy before the real server."""

    def test_an_answer_that_is_lost_after_a_put(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("lost-answers")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint})
            lost: list[Request] = []

            def lose_each_once(request: Request) -> Fault | None:
                if not request.conditional or len(lost) == 2:
                    return None
                lost.append(request)
                return Fault(status=0)

            proxy.choose = lose_each_once
            tag = store.create("one", b"mine")
            assert store.swap("one", b"mine, too", tag) == store.read_tagged("one").tag
            assert (len(lost), store.read("one")) == (2, b"mine, too")

    def test_an_answer_that_is_lost_and_the_object_another_writers(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("lost-and-other")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint, "tries": "1"})
            other = open_store(f"s3://{bucket}/lake", {"endpoint": s3_server.endpoint})
            other.create("one", b"theirs")
            proxy.choose = lambda request: Fault(status=0) if request.conditional else None
            with pytest.raises(ObjectExists):
                store.create("one", b"mine")

    def test_a_store_that_is_overloaded_for_a_while(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("overloaded")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint})
            proxy.choose = lambda request: Fault(503) if len(proxy.seen) % 3 else None
            store.create("one", b"1")
            with store.data.open_output("data/file") as file:
                file.write(b"x" * 1_000_000)
            assert [each.size_bytes for each in store.list_objects("data")] == [1_000_000]
            assert any(request.conditional for request in proxy.seen)

    def test_an_upload_whose_last_answer_is_lost(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("lost-upload")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint, "tries": "1"})
            content = os.urandom(11_000_000)
            file = store.data.open_output("data/file")
            file.write(content)
            last = [True]
            proxy.choose = lambda request: Fault(0) if request.method == "POST" and last and last.pop() else None
            store.data.close_output(file, "data/file", len(content))
            assert not last
            assert store.read("data/file") == content

    def test_a_store_that_stays_overloaded_is_told_in_one_line(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("always-overloaded")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint, "tries": "2"})
            proxy.choose = lambda request: Fault(503)
            said = rf"^s3://{bucket}/lake/one cannot be .*: the store is overloaded .* try again later"
            with pytest.raises(StoreError, match=said):
                store.create("one", b"1")
            with pytest.raises(StoreError, match=said):
                store.read("one")
            with pytest.raises(StoreError, match=r"lake/two cannot be written: .*SLOW_DOWN"):
                store.data.close_output(store.data.open_output("two"), "two", 1)

    def test_a_store_that_denies(self, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket("denied")
        with fault_proxy(s3_server) as proxy:
            store = open_store(f"s3://{bucket}/lake", {"endpoint": proxy.endpoint})
            proxy.choose = lambda request: Fault(403, "AccessDenied")
            with pytest.raises(
                StoreError, match=r"one cannot be written: the store denies it \(AccessDenied\); check AWS"
            ):
                store.create("one", b"1")

    def test_a_store_that_is_not_there(self) -> None:
        store = open_store("s3://bucket/lake", {"endpoint": "http://127.0.0.1:1", "tries": "2"})
        with pytest.raises(
            StoreError, match=r"^s3://bucket/lake/one cannot be read: the store does not answer; check the endpoint"
        ):
            store.read("one")

    def test_a_bucket_that_does_not_exist(self, s3_server: S3Server) -> None:
        store = open_store("s3://no-such-bucket/lake", {"endpoint": s3_server.endpoint})
        for work in (lambda: store.create("one", b""), lambda: store.read("one"), lambda: list(store.list_objects())):
            with pytest.raises(StoreError, match="the bucket no-such-bucket does not exist"):
                work()


def test_an_option_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlaceRefused, match="AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket/x", {"secret_access_key": "hidden"})
    with pytest.raises(PlaceRefused, match="s3 has the options endpoint, region"):
        open_store("s3://bucket/x", {"endpont": "http://x"})
    with pytest.raises(PlaceRefused, match="a whole number from 1"):
        open_store("s3://bucket/x", {"tries": "0"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://10.0.0.1:9000")
    assert open_store("s3://bucket/x").options["endpoint"] == "http://10.0.0.1:9000"
    assert "hidden" not in str(open_store("s3://bucket/x").options)


def test_an_address_with_a_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(PlaceRefused) as refused:
        parse_place("s3://someone:hidden@bucket/lake")
    assert "hidden" not in str(refused.value)

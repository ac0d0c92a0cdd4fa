"""Goal: an address of a table is read as its user means it, and an address that nothing serves is refused in one line.

Method: addresses as text, and the command, which must leave no folder where it was started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_export.tables.address import StoreLocation, complete_options, parse_place
from spark_export.tables.errors import TableRefused


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/srv/lake", StoreLocation("file", "", "/srv/lake")),
        ("/srv/a:b/c", StoreLocation("file", "", "/srv/a:b/c")),
        ("file:///srv/my%20lake", StoreLocation("file", "", "/srv/my lake")),
        ("file:/srv/lake/", StoreLocation("file", "", "/srv/lake")),
        ("file://localhost/srv/lake", StoreLocation("file", "", "/srv/lake")),
        ("s3://bucket/lake/", StoreLocation("s3", "bucket", "lake")),
        ("S3A://bucket/a//b", StoreLocation("s3", "bucket", "a/b")),
        ("s3n://bucket", StoreLocation("s3", "bucket", "")),
        ("gcs://bucket/lake", StoreLocation("gs", "bucket", "lake")),
        (
            "abfss://box@account.dfs.core.windows.net/lake",
            StoreLocation("abfs", "box@account.dfs.core.windows.net", "lake"),
        ),
        ("az://box/lake", StoreLocation("abfs", "box", "lake")),
        ("hdfs://name:8020/lake", StoreLocation("hdfs", "name:8020", "lake")),
    ],
)
def test_an_address_is_read(text: str, place: StoreLocation) -> None:
    assert parse_place(text) == place
    assert parse_place(str(place)) == place


def test_a_relative_folder_is_made_absolute() -> None:
    assert parse_place("lake") == StoreLocation("file", "", str(Path.cwd() / "lake"))
    assert parse_place("./s3:/lake") == StoreLocation("file", "", str(Path.cwd() / "s3:/lake"))


@pytest.mark.parametrize(
    "text", ["ftp://host/lake", "s3x://bucket/lake", "http://host/lake", "dbfs:/lake", "oss://b/x"]
)
def test_a_scheme_that_is_not_served_is_refused(text: str) -> None:
    with pytest.raises(TableRefused, match=r"nothing serves .*s3://.*gs://.*abfs://.*hdfs:// are served"):
        parse_place(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3:///lake", "names no bucket"),
        ("s3://", "names no bucket"),
        ("s3://bucket/../x", "no parts"),
        ("file://elsewhere/lake", "names the machine elsewhere"),
    ],
)
def test_an_incomplete_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(TableRefused, match=said):
        parse_place(text)


def test_an_address_that_pathlib_has_shortened_is_still_an_address() -> None:
    assert parse_place(Path("s3://bucket/lake")) == StoreLocation("s3", "bucket", "lake")


@pytest.mark.parametrize("verb", ["run", "daemon", "history", "verify", "compact"])
@pytest.mark.parametrize("text", ["ftp://host/lake", "s3x://bucket/lake"])
def test_the_command_refuses_a_scheme_and_makes_no_folder(tmp_path: Path, verb: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stream_node", "export", verb, text],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "nothing serves" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "is_anonymous"), [({}, "false"), ({"anonymous": "yes"}, "true")])
def test_deltalake_and_the_writer_of_files_reach_a_store_in_one_way(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_anonymous: str
) -> None:
    """Goal: an option that is not given has its default for both. deltalake would take it from the environment."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    from spark_export.tables.delta import _delta_options

    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    place = parse_place("s3://bucket/lake")
    options = _delta_options(place, complete_options(place, given))
    assert options is not None
    assert (options["aws_skip_signature"], options["aws_virtual_hosted_style_request"]) == (is_anonymous, "false")

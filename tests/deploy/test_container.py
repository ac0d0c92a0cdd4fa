"""Goal: the image and the compose file give the node what it accepts, and nothing that it does not need.

Method: both are parsed; commands and variables go through the program's own checks; and a real node runs with the
variables of the image, and is asked by the names and paths that the files use. No image is built here.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ockam.actors.address import split_host_port
from stream_node.cli.values import parse_duration
from stream_node.node.config import ConfigError
from stream_node.node.process import NodeProcess
from tests.deploy.deployed import (
    CONTAINERFILE,
    DEPLOY,
    accept,
    exec_form,
    image_environment,
    instructions,
    is_short_image,
    last_stage,
    read_yaml,
    settings_of,
)
from tests.style.test_packaging import read_lock
from tests.style.tree import ROOT

USER = "10001:10001"


def test_the_image_starts_from_short_names_and_ends_without_pip() -> None:
    every = instructions()
    sources = [text.split()[0] for name, text in every if name == "FROM"]
    assert sources == ["python:3.11-slim-trixie", "python:3.11-slim-trixie", "scratch"]
    copied = [text.split()[-2:] for name, text in every if name == "COPY"][-3:]
    assert copied == [["/", "/"], ["/opt/stream-node", "/opt/stream-node"], ["/data", "/data"]]
    (cleaned,) = [text for name, text in every if name == "RUN" and "ensurepip" in text]
    assert "/usr/local/bin/pip*" in cleaned
    # What scanners read to know the packages of the image.
    assert "/var/lib/dpkg " not in cleaned.replace("find /var/lib/dpkg -mindepth 1 -not -name status -delete", "")
    assert "/var/lib/dpkg -mindepth 1 -not -name status -delete" in cleaned
    assert "/usr/local/lib/python3.11/site-packages/*" in cleaned
    assert cleaned.endswith("rm -f /bin/bash /bin/dash /bin/sh")
    assert "--without-pip" in next(text for name, text in every if name == "RUN")


def test_the_image_runs_as_nobody_and_keeps_its_data_in_a_volume() -> None:
    stage = last_stage()
    assert stage["USER"] == USER
    assert all(int(part) > 0 for part in stage["USER"].split(":"))
    assert stage["VOLUME"] == image_environment()["STREAM_NODE_DATA_DIR"] == "/data"
    assert f"--chown={USER}" in stage["COPY"]
    assert stage["STOPSIGNAL"] == "SIGTERM"


def test_the_commands_of_the_image_are_the_programs() -> None:
    stage = last_stage()
    assert exec_form(stage["ENTRYPOINT"]) == ["stream-node"]
    accept(exec_form(stage["CMD"]))
    probe = exec_form(stage["HEALTHCHECK"].partition(" CMD ")[2])
    assert probe[0] == "stream-node"
    assert accept(probe[1:])["live"] is True
    # The command gives up before the container does.
    timeout = re.search(r"--timeout=(\S+)", stage["HEALTHCHECK"])
    assert timeout is not None
    assert parse_duration(timeout[1]) > accept(probe[1:])["timeout"]


def test_the_image_is_safe_unless_told_otherwise() -> None:
    """Goal: a node that all may reach has TLS and rules, or somebody has said that it needs none."""
    with pytest.raises(ConfigError, match="without TLS and without rules"):
        settings_of(image_environment())
    config = settings_of({**image_environment(), "STREAM_NODE_INSECURE": "true"})
    ports = {split_host_port(address)[1] for address in (config.listen, *config.http)}
    assert ports == {int(port) for port in last_stage()["EXPOSE"].split()}


def test_the_image_gets_every_package_and_leaves_the_building_tools() -> None:
    """Goal: what is copied and what is removed follow the project. Method: pyproject.toml and the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    ignore = (DEPLOY / "container/Containerfile.dockerignore").read_text().splitlines()
    copied = {line[1:] for line in ignore if line.startswith("!")}
    assert ignore[1] == "*"
    locks = {"tools/locks/requirements.lock", "tools/locks/requirements-extras.lock"}
    assert copied - packages - locks == {
        *("pyproject.toml", "tools/compile_wheel.py", "tools/sbom.py", "README.md", "LICENSE")
    }
    assert copied >= packages | locks
    # Of each locked package, those that ask for it.
    lock = (ROOT / "tools/locks/requirements.lock").read_text()
    asked = {}
    for entry in re.split(r"\n(?=\w)", lock):
        name = entry.partition("==")[0]
        asked[name] = set(re.findall(r"#\s+(?:via )?([\w-]+(?: \([^)]*\))?)$", entry, re.MULTILINE)) - {"via"}
    building = {Requirement(each).name for each in project["dependency-groups"]["build"]}
    size = 0
    while size != len(building):
        size = len(building)
        building |= {name for name, by in asked.items() if by and by <= building}
    removed = next(text for name, text in instructions() if name == "RUN" and "uninstall" in text)
    assert set(removed.partition("--yes")[2].partition("&&")[0].split()) == building


def test_the_list_of_the_image_has_every_package(tmp_path: Path) -> None:
    """Method: the script that the build calls; beside it, the folders that pip has made here."""
    (command,) = re.findall(r"python (tools/\S+) (\S+) >", CONTAINERFILE.read_text())
    assert command == ("tools/sbom.py", "/var/lib/dpkg/status")
    status = tmp_path / "status"
    status.write_text("Package: libc6\nStatus: install ok\nArchitecture: amd64\nVersion: 2.41-12+deb13u1\n\n")
    done = subprocess.run([sys.executable, ROOT / command[0], status], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    names = {each["purl"] for each in found["components"]}
    assert f"pkg:generic/python@{platform.python_version()}" in names
    assert "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64" in names
    # The folders beside the packages, as a scanner finds them.
    folders = Path(sysconfig.get_path("purelib")).glob("*.dist-info")
    here = {re.sub(r"[-_.]+", "-", each.name.partition("-")[0]).lower() for each in folders}
    assert {name.removeprefix("pkg:pypi/").partition("@")[0] for name in names if "pypi" in name} == here


@pytest.mark.parametrize(("names", "code"), [("psycopg psycopg-binary", 0), ("psycopg psycopg-misspelt", 1), ("", 0)])
def test_further_packages_of_the_image_have_hashes(tmp_path: Path, names: str, code: int) -> None:
    """Method: the build's own line, with a pip that only shows what it is given."""
    line = next(text for name, text in instructions() if name == "RUN" and "$PACKAGES" in text)
    shutil.copy(ROOT / "tools/locks/requirements-extras.lock", tmp_path)
    (tmp_path / "pip").write_text('#!/bin/sh\nfor file; do :; done\necho "$*"\ncat "$file"\n')
    (tmp_path / "pip").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PACKAGES": names}
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    if names and not code:
        assert "install --no-deps --require-hashes -r more.lock\n" in done.stdout
        found = read_lock(done.stdout.partition("\n")[2])
        assert sorted(found) == names.split()
        assert all(each.hashes > 1 for each in found.values())
        assert read_yaml("compose.cluster.yaml")["x-node"]["build"]["args"] == {"PACKAGES": names}


def test_compose_gives_the_node_settings_that_it_takes() -> None:
    services = read_yaml("compose.yaml")["services"]
    node = services["stream-node"]
    config = settings_of({**image_environment(), **node["environment"]})
    assert config.retention_age_s == 30 * 86_400
    assert parse_duration(node["stop_grace_period"]) > 2 * config.drain_timeout_s
    assert node["volumes"] == [f"data:{config.data_dir}"]
    assert node["read_only"]
    assert (DEPLOY / node["build"]["context"]).resolve() == ROOT
    assert (ROOT / node["build"]["dockerfile"]).is_file()
    for name, service in services.items():
        assert is_short_image(service["image"]), name
        assert service["cap_drop"] == ["ALL"], name
        # With "on-failure", Docker starts nothing again after a reboot.
        assert service["restart"] == "unless-stopped", name
        # Without TLS and rules, no other machine may reach a port.
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            known = (
                (DEPLOY / source).exists() if source.startswith(".") else source in read_yaml("compose.yaml")["volumes"]
            )
            assert known, volume
    assert not is_short_image("registry.test/stream-node")
    assert not is_short_image("localhost:5000/stream-node")


def test_the_cluster_of_compose_has_settings_that_nodes_take() -> None:
    """Goal: both nodes share one database and have names and addresses of their own. Method: the settings that a node
    would read, and the files that the services mount."""
    found = read_yaml("compose.cluster.yaml")
    services = found["services"]
    nodes = [settings_of({**image_environment(), **services[name]["environment"]}) for name in ("n1", "n2")]
    assert [(node.cluster, node.cluster_address) for node in nodes] == [("n1", "n1:4000"), ("n2", "n2:4000")]
    assert nodes[0].database == nodes[1].database
    hosts = str(nodes[0].database).partition("@")[2].partition("/")[0].split(",")
    assert [host.partition(":")[0] for host in hosts] == ["primary", "standby"]
    assert set(services) == {"n1", "n2", "primary", "standby"}
    for name, service in services.items():
        assert is_short_image(service["image"]), name
        assert service["restart"] == "unless-stopped", name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in found["volumes"], volume
    assert "synchronous_standby_names=ANY 1 (*)" in services["primary"]["command"]


@pytest.mark.parametrize("file", ["compose.yaml", "compose.cluster.yaml"])
def test_docker_takes_the_compose_file(file: str) -> None:
    """An opinion from outside, where there is one."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("needs docker compose")
    command = ["docker", "compose", "--file", str(DEPLOY / file), "config", "--quiet"]
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": "/root", "GRAFANA_PASSWORD": "x"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_with_the_variables_of_the_image_answers_by_its_name(tmp_path: Path) -> None:
    """Goal: Prometheus reaches the node by the name of its service. Method: the same variables, with free ports."""
    target = read_yaml("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"][0]
    variables = image_environment() | read_yaml("compose.yaml")["services"]["stream-node"]["environment"]
    del variables["STREAM_NODE_DATA_DIR"]
    arguments = ("--http", "0.0.0.0:0")
    with NodeProcess(tmp_path / "data", listen="0.0.0.0:0", environment=variables, arguments=arguments) as node:
        port = split_host_port(node.http[0])[1]
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/livez", headers={"Host": target})
            with connection.getresponse() as response:
                assert response.status == 200, response.read()
        assert node.stop() == 0

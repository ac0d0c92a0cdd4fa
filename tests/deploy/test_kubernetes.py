"""Goal: the StatefulSet gives the node what it accepts, is restricted, and its probes ask what the node answers.

Method: the manifests are parsed, and their parts compared with each other, with the image and with the program.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ockam.actors.address import split_host_port
from stream_node.node.process import NodeProcess
from tests.deploy.deployed import (
    accept,
    image_environment,
    is_short_image,
    last_stage,
    open_paths,
    read_documents,
    settings_of,
)
from tests.style.tree import ROOT

DOCUMENTS = {each["kind"]: each for each in read_documents("kubernetes/statefulset.yaml")}
POD: dict[str, Any] = DOCUMENTS["StatefulSet"]["spec"]["template"]["spec"]
(NODE,) = POD["containers"]
PAGE = (ROOT / "docs/deploy.md").read_text()


def node_environment(namespace: str) -> dict[str, str]:
    """The variables of the node, as Kubernetes makes them in this namespace."""
    place, *own = NODE["env"]
    assert place == {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    return {each["name"]: each["value"].replace("$(NAMESPACE)", namespace) for each in own}


class Contained(NodeProcess):
    """A node that is the first process of a namespace of processes, if this process may make one."""

    def command(self) -> list[str]:
        if os.geteuid() != 0:
            return super().command()
        return ["unshare", "--pid", "--fork", "--kill-child", *super().command()]


def test_the_settings_are_right(tmp_path: Path) -> None:
    (file,) = [tmp_path / name for name in DOCUMENTS["ConfigMap"]["data"]]
    file.write_text(DOCUMENTS["ConfigMap"]["data"][file.name])
    config = settings_of(image_environment() | node_environment("shop"), file)
    assert POD["terminationGracePeriodSeconds"] > 2 * config.drain_timeout_s
    arguments = accept(NODE["args"])
    mounts = {each["name"]: each["mountPath"] for each in NODE["volumeMounts"]}
    assert Path(arguments["config"]) == Path(mounts["settings"]) / file.name
    assert mounts["data"] == config.data_dir
    ports = {f"0.0.0.0:{each['containerPort']}" for each in NODE["ports"]}
    assert ports == {config.listen, *config.http}


def test_the_node_answers_by_every_name_of_its_service_and_reads_its_file_again(tmp_path: Path) -> None:
    """Goal: pods call the node by the names that Kubernetes gives it, and the command of the page reaches it.

    Method: a real node with the file and the variables of the manifest, the first process of a namespace as in a
    container, without a shell on its way.
    """
    file = tmp_path / "node.toml"
    file.write_text(DOCUMENTS["ConfigMap"]["data"]["node.toml"])
    node = Contained(
        tmp_path / "data",
        arguments=("--http", "0.0.0.0:0", "--config", str(file)),
        environment=node_environment("shop"),
    )
    service, pod = DOCUMENTS["Service"]["metadata"]["name"], "stream-node-0.stream-node"
    names = [f"{name}{end}" for name in (service, pod) for end in ("", ".shop", ".shop.svc", ".shop.svc.cluster.local")]
    with node:
        address = split_host_port(node.http[0].replace("0.0.0.0", "127.0.0.1"))
        answers = {}
        for name in [*names, "evil.test", "stream-node.other.svc"]:
            with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
                connection.request("GET", "/livez", headers={"Host": f"{name}:4080"})
                answers[name] = connection.getresponse().status
        assert answers == dict.fromkeys(names, 200) | {"evil.test": 421, "stream-node.other.svc": 421}
        if os.geteuid() != 0:
            pytest.skip("needs root to enter a namespace")
        (line,) = re.findall(r"^kubectl exec stream-node-0 -- (python3 .*?)(?:  #.*)?$", PAGE, re.MULTILINE)
        (first,) = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        file.write_text(file.read_text() + 'log_level = "debug"\n')
        command = ["nsenter", "--target", first, "--pid", sys.executable, *shlex.split(line)[1:]]
        subprocess.run(command, check=True, timeout=60)
        deadline_s = time.monotonic() + 60
        while '"settings_loaded"' not in node.log_file.read_text():
            assert time.monotonic() < deadline_s, node.log_file.read_text()
            time.sleep(0.05)


def test_the_probes_ask_what_the_node_answers_to_everybody() -> None:
    ports = {each["name"] for each in NODE["ports"]}
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz?for=read")):
        assert NODE[name]["httpGet"] == {"path": path, "port": "http"}
        assert path.partition("?")[0] in open_paths(), path
        assert NODE[name]["httpGet"]["port"] in ports
    # A start may take as long as under systemd.
    assert NODE["startupProbe"]["periodSeconds"] * NODE["startupProbe"]["failureThreshold"] == 15 * 60


def test_the_pod_is_restricted() -> None:
    """The rules of the profile "restricted" of Kubernetes, and a file system that only the node's volumes open."""
    pod, node = POD["securityContext"], NODE["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == last_stage()["USER"]
    assert pod["fsGroup"] == pod["runAsGroup"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert node == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False
    assert is_short_image(NODE["image"])


def test_the_parts_find_each_other() -> None:
    stateful = DOCUMENTS["StatefulSet"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == DOCUMENTS["Service"]["spec"]["selector"] == labels
    assert DOCUMENTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert stateful["serviceName"] == DOCUMENTS["Service"]["metadata"]["name"]
    # A data directory has one node.
    assert stateful["replicas"] == 1
    assert stateful["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    mounted = {each["name"] for each in NODE["volumeMounts"]}
    offered = {each["name"] for each in POD["volumes"]}
    offered |= {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    assert mounted == offered
    named = {each["name"] for each in NODE["ports"]}
    assert {each["targetPort"] for each in DOCUMENTS["Service"]["spec"]["ports"]} == named
    (ingress,) = DOCUMENTS["NetworkPolicy"]["spec"]["ingress"]
    assert {each["port"] for each in ingress["ports"]} == named

"""Goal: the StatefulSet gives the node what it accepts, is restricted, and its probes ask what the node answers.

Method: the manifests are parsed, and their parts compared with each other, with the image and with the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.deploy.deployed import (
    accept,
    image_environment,
    is_short_image,
    last_stage,
    open_paths,
    read_documents,
    settings_of,
)

DOCUMENTS = {each["kind"]: each for each in read_documents("kubernetes/statefulset.yaml")}
POD: dict[str, Any] = DOCUMENTS["StatefulSet"]["spec"]["template"]["spec"]
(NODE,) = POD["containers"]


def test_the_settings_are_right(tmp_path: Path) -> None:
    (file,) = [tmp_path / name for name in DOCUMENTS["ConfigMap"]["data"]]
    file.write_text(DOCUMENTS["ConfigMap"]["data"][file.name])
    environment = image_environment() | {each["name"]: each["value"] for each in NODE.get("env", ())}
    config = settings_of(environment, file)
    assert POD["terminationGracePeriodSeconds"] > 2 * config.drain_timeout_s
    arguments = accept(NODE["args"])
    mounts = {each["name"]: each["mountPath"] for each in NODE["volumeMounts"]}
    assert Path(arguments["config"]) == Path(mounts["settings"]) / file.name
    assert mounts["data"] == config.data_dir
    ports = {f"0.0.0.0:{each['containerPort']}" for each in NODE["ports"]}
    assert ports == {config.listen, *config.http}


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

"""Goal: alerts and panels watch metrics that exist, and each alert fires for its fault and for no healthy node.

Method: every name and label in their expressions is looked up in the list of metrics and in the answer of a real node;
and promtool, a program of Prometheus, evaluates the rules on series that this file writes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from stream_node.care.trouble import TROUBLE_KINDS, TroubleKind
from stream_node.doors.metrics.catalogue import METRICS
from tests.deploy.deployed import DEPLOY, read_yaml
from tests.stream_node.doors.http.http_node import http_node

ALERTS = [rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/stream-node.json").read_text())
WORDS = frozenset(
    ["and", "or", "unless", "on", "ignoring", "by", "without", "group_left", "group_right", "bool", "offset"]
)
TARGET_LABELS = frozenset({"instance", "job"})
"""Labels that Prometheus itself gives to each series."""
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(\s*\()?")


class Series(NamedTuple):
    """One series that an expression selects."""

    metric: str
    labels: frozenset[str]


def series_in(expression: str) -> Iterator[Series]:
    """The series that an expression selects, each with the labels that it asks for."""
    grouped = {label.strip() for found in GROUPING.findall(expression) for label in found.split(",")} - {""}
    text = re.sub(r"\[[^\]]*\]", "", GROUPING.sub(" ", expression))
    for name, matchers, call in SELECTOR.findall(text):
        if not call and name not in WORDS:
            yield Series(name, frozenset(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) | grouped)


def dashboard_expressions() -> list[tuple[str, str, str]]:
    """Of every query of the dashboard: the title of its panel, the query, and its legend."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def known_metrics() -> dict[str, frozenset[str]]:
    """The labels of each metric by its name; a histogram has three names."""
    known = {}
    for metric in METRICS:
        endings = {"_bucket": {"le"}, "_sum": set(), "_count": set()} if metric.kind == "histogram" else {"": set()}
        for ending, more in endings.items():
            known[metric.name + ending] = frozenset({*metric.labels, *more})
    # prometheus-client makes those of the process.
    return known | dict.fromkeys(("process_cpu_seconds_total", "process_resident_memory_bytes", "up"), frozenset())


def problems(place: str, expression: str, more_labels: frozenset[str] = frozenset()) -> list[str]:
    """What is wrong with an expression. more_labels: those that its text or its legend shows."""
    known, found = known_metrics(), []
    selected = list(series_in(expression))
    if not selected:
        found.append(f"{place}: {expression!r} selects nothing")
    for series in selected:
        if series.metric not in known:
            found.append(f"{place}: there is no metric {series.metric}")
        elif unknown := (series.labels | more_labels) - known[series.metric] - TARGET_LABELS:
            found.append(f"{place}: {series.metric} has no label {', '.join(sorted(unknown))}")
    return found


def test_alerts_use_metrics_and_labels_that_exist() -> None:
    found = []
    for rule in ALERTS:
        shown = frozenset(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        found += problems(rule["alert"], rule["expr"], shown)
    assert found == []


def test_panels_use_metrics_and_labels_that_exist() -> None:
    found = []
    for title, expression, legend in dashboard_expressions():
        found += problems(title, expression, frozenset(re.findall(r"\{\{(\w+)\}\}", legend)))
    source, *others = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    for variable in others:
        metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["definition"])[0]
        found += problems(variable["name"], metric, frozenset({label}))
    assert found == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(stream_node_pushs_total[5m])", "there is no metric stream_node_pushs_total"),
        ('stream_node_stream_bytes{streem="x"}', "stream_node_stream_bytes has no label streem"),
        ("sum by (le, stream) (rate(stream_node_sync_seconds_bucket[5m]))", "has no label stream"),
        ("stream_node_sync_seconds > 1", "there is no metric stream_node_sync_seconds"),
        ("1 > 0", "selects nothing"),
    ],
)
def test_a_wrong_expression_is_seen(expression: str, problem: str) -> None:
    assert [problem in each for each in problems("here", expression)] == [True]


async def test_a_real_node_tells_what_alerts_and_panels_watch(tmp_path: Path) -> None:
    """Goal: the list of metrics is what a node says. Method: a node with rules, streams and a consumer is scraped; only
    metrics of things that this node does not have may be missing."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "all"\nwho = ["*"]\nmay = ["all"]\non = [""]\n')
    async with http_node(tmp_path / "data", access_rules=str(rules)) as node, node.client() as client:
        peer = await node.running.peer()
        route = await peer.create("orders")
        await peer.push(route, b"one")
        answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    scraped = {sample.name for family in text_string_to_metric_families(answer.text) for sample in family.samples}
    used = {series.metric for rule in ALERTS for series in series_in(rule["expr"])}
    used |= {series.metric for _, expression, _ in dashboard_expressions() for series in series_in(expression)}
    labelled = {name for name, labels in known_metrics().items() if labels - {"le"}}
    empty = {
        "up",
        "stream_node_block_last",
        "stream_node_block_last_acknowledged",
        "stream_node_cluster_unowned_shards",
    }
    assert used - scraped - labelled - empty == set()
    assert "stream_node_stream_bytes" in scraped


ALERT_OF_TROUBLE: dict[TroubleKind, str] = {
    "not_writing": "StreamNodeNotWriting",
    "not_reading": "StreamNodeNotReading",
    "push_failed": "StreamNodePushesFail",
    "disk_full": "StreamNodeRefusesPushes",
    "disk_nearly_full": "StreamNodeDiskNearlyFull",
    "disk_unknown": "StreamNodeDiskUnknown",
    "disk_slow": "StreamNodeSlowSync",
    "retention_behind": "StreamNodeRetentionBehind",
    "audit_log_failed": "StreamNodeAuditLogFails",
    "certificate_ends": "StreamNodeCertificateEnds",
    "token_ends": "StreamNodeTokenEnds",
    "blocks_stalled": "StreamNodeBlocksStalled",
    "blocks_damaged": "StreamNodeBlocksDamaged",
    "block_sources_disagree": "StreamNodeBlockSourcesDisagree",
    "backfill_failing": "StreamNodeBackfillFails",
    "block_source_failing": "StreamNodeBackfillSourceFails",
    "block_publishers_silent": "StreamNodeBlockPublishersSilent",
    "consumer_stuck": "StreamNodeConsumerStuck",
    "consumer_beyond_end": "StreamNodeConsumerBeyondEnd",
    "publisher_silent": "StreamNodePublisherSilent",
    "shards_unowned": "StreamNodeShardsUnowned",
    "shard_messages_waiting": "StreamNodeShardMessagesWait",
    "member_silent": "StreamNodeMemberSilent",
    "mirror_circle": "StreamNodeMirrorCircle",
    "mirror_unfenced": "StreamNodeMirrorUnfenced",
    "mirror_promoting": "StreamNodeMirrorPromoting",
    "mirror_parted": "StreamNodeMirrorParted",
    "mirror_not_following": "StreamNodeMirrorNotFollowing",
}
"""The alert for each thing that the dashboard calls wrong. A node that stops does so because somebody wants it."""


def test_whatever_the_dashboard_calls_wrong_has_an_alert() -> None:
    assert set(TROUBLE_KINDS) - set(ALERT_OF_TROUBLE) == {"stopping"}
    assert set(ALERT_OF_TROUBLE.values()) <= {rule["alert"] for rule in ALERTS}


def test_every_alert_says_what_to_do() -> None:
    for rule in ALERTS:
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["description"].endswith(".")
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_the_dashboard_has_no_panel_over_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]
    # Whoever imports the dashboard chooses the source.
    sources = re.findall(r'"datasource": {"type": "prometheus", "uid": "([^"]+)"}', json.dumps(DASHBOARD))
    assert set(sources) == {"${datasource}"}
    assert len(sources) == json.dumps(DASHBOARD).count('"datasource": {')
    assert any("stream_node_troubles" in expression for _, expression, _ in dashboard_expressions())
    # Grafana finds the dashboards where compose puts them.
    (provider,) = read_yaml("grafana/provisioning/dashboards/stream-node.yml")["providers"]
    volumes = read_yaml("compose.yaml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in volumes


GROWS = "0+1x200"
CONSUMER = '{client="c", stream="s"}'
FAULTS: dict[str, dict[str, str]] = {
    "StreamNodeDown": {'up{job="stream-node"}': "0x200"},
    "StreamNodeNotWriting": {"stream_node_writing": "0x200"},
    "StreamNodeNotReading": {'stream_node_troubles{kind="not_reading"}': "1x200"},
    "StreamNodeRefusesPushes": {"stream_node_refusing_pushes": "1x200"},
    "StreamNodeDiskFills": {"stream_node_refusing_pushes": "0x200", "stream_node_free_disk_bytes": "20000-50x200"},
    "StreamNodeDiskNearlyFull": {'stream_node_troubles{kind="disk_nearly_full"}': "1x200"},
    "StreamNodeDiskUnknown": {'stream_node_troubles{kind="disk_unknown"}': "1x200"},
    "StreamNodePushesFail": {"stream_node_pushes_failed_total": GROWS},
    "StreamNodeSlowSync": {
        'stream_node_sync_seconds_bucket{le="0.1"}': "0x200",
        'stream_node_sync_seconds_bucket{le="1.0"}': GROWS,
        'stream_node_sync_seconds_bucket{le="+Inf"}': GROWS,
    },
    "StreamNodeConsumerStuck": {f"stream_node_consumer_stuck_seconds{CONSUMER}": "0+15x200"},
    "StreamNodeConsumerBeyondEnd": {'stream_node_troubles{kind="consumer_beyond_end"}': "1x200"},
    "StreamNodePublisherSilent": {'stream_node_publisher_silent_seconds{stream="s"}': "0+15x200"},
    "StreamNodeConsumerFallsBehind": {f"stream_node_consumer_lag_messages{CONSUMER}": "20000+100x200"},
    "StreamNodeConsumerGone": {"stream_node_leases_expired_total": GROWS},
    "StreamNodeSlowConsumers": {"stream_node_slow_consumers_total": GROWS},
    "StreamNodeMemoryOfPeersFull": {
        "stream_node_in_flight_bytes": "95x200",
        "stream_node_in_flight_bytes_max": "100x200",
    },
    "StreamNodeMailboxesFull": {"stream_node_mailboxes_full": "2x200"},
    "StreamNodeWorkersRestart": {"stream_node_worker_restarts_total": GROWS},
    "StreamNodeRetentionBehind": {"stream_node_retention_lag_seconds": "900x200"},
    "StreamNodeCheckpointsFail": {"stream_node_checkpoint_failures_total": GROWS},
    "StreamNodeManyRefusals": {'stream_node_access_refused_total{right="read"}': "0+100x200"},
    "StreamNodeRulesNotTaken": {"stream_node_access_reloads_failed_total": GROWS},
    "StreamNodeAuditLogFails": {"stream_node_audit_failures_total": GROWS},
    "StreamNodeCertificateEnds": {'stream_node_troubles{kind="certificate_ends"}': "1x200"},
    "StreamNodeTokenEnds": {'stream_node_troubles{kind="token_ends"}': "2x200"},
    "StreamNodeBlockPublisherGone": {"stream_node_block_publishers_lost_total": "0x115 1x85"},
    "StreamNodeBlockPublishersSilent": {'stream_node_troubles{kind="block_publishers_silent"}': "1x200"},
    "StreamNodeBlocksFail": {"stream_node_blocks_failed_total": GROWS},
    "StreamNodeBlocksDamaged": {"stream_node_blocks_damaged": "1x200"},
    "StreamNodeBlocksStalled": {"stream_node_block_catch_up_stalled": "1x200"},
    "StreamNodeBlockSourcesDisagree": {'backfill_source_disagrees{source="a:1"}': "1x200"},
    "StreamNodeBackfillFails": {"backfill_failing": "1x200"},
    "StreamNodeBackfillSourceFails": {'backfill_source_healthy{source="a:1"}': "0x200"},
    "StreamNodeShardsUnowned": {'stream_node_troubles{kind="shards_unowned"}': "1x200"},
    "StreamNodeShardMessagesWait": {'stream_node_troubles{kind="shard_messages_waiting"}': "1x200"},
    "StreamNodeMemberSilent": {'stream_node_troubles{kind="member_silent"}': "1x200"},
    "StreamNodeMirrorCircle": {'stream_node_mirrors{condition="circle"}': "1x200"},
    "StreamNodeMirrorUnfenced": {'stream_node_mirrors{condition="unfenced"}': "1x200"},
    "StreamNodeMirrorPromoting": {'stream_node_mirrors{condition="promoting"}': "1x200"},
    "StreamNodeMirrorParted": {'stream_node_mirrors{condition="parted"}': "1x200"},
    # It changes between both at every attempt.
    "StreamNodeMirrorNotFollowing": {
        'stream_node_mirrors{condition="unreachable"}': "1 0 " * 60 + "1",
        'stream_node_mirrors{condition="failed"}': "0 1 " * 60 + "0",
    },
}
"""For each alert, the series of a node with its fault: values every 15 s, as promtool writes them. At 30 minutes, the
alert must fire."""
HEALTHY = {
    'up{job="stream-node"}': "1x200",
    "stream_node_writing": "1x200",
    "stream_node_refusing_pushes": "0x200",
    "stream_node_free_disk_bytes": "20000000000-1000x200",
    'stream_node_sync_seconds_bucket{le="0.1"}': GROWS,
    'stream_node_sync_seconds_bucket{le="1.0"}': GROWS,
    'stream_node_sync_seconds_bucket{le="+Inf"}': GROWS,
    f"stream_node_consumer_lag_messages{CONSUMER}": "0x200",
    'stream_node_troubles{kind="disk_nearly_full"}': "0x200",
    'stream_node_troubles{kind="disk_unknown"}': "0x200",
    'stream_node_troubles{kind="block_publishers_silent"}': "0x200",
    'stream_node_troubles{kind="certificate_ends"}': "0x200",
    'stream_node_troubles{kind="token_ends"}': "0x200",
    'stream_node_troubles{kind="shards_unowned"}': "0x200",
    'stream_node_troubles{kind="shard_messages_waiting"}': "0x200",
    'stream_node_troubles{kind="member_silent"}': "0x200",
    'stream_node_mirrors{condition="following"}': "3x200",
    'stream_node_mirrors{condition="fencing"}': "1x200",
    'stream_node_mirrors{condition="circle"}': "0x200",
    'stream_node_mirrors{condition="unfenced"}': "0x200",
    'stream_node_mirrors{condition="parted"}': "0x200",
    # A planned promotion takes some seconds, and a source that starts again is away for a moment.
    'stream_node_mirrors{condition="promoting"}': "0x119 1 0x80",
    'stream_node_mirrors{condition="unreachable"}': "0x119 1 0x80",
    "stream_node_in_flight_bytes": "10x200",
    "stream_node_in_flight_bytes_max": "100x200",
    "stream_node_retention_lag_seconds": "2x200",
    'stream_node_access_refused_total{right="read"}': "0+1x200",
    # A publisher that ends its stream is missed by nobody.
    "stream_node_block_publishers": "2x119 1x81",
    "stream_node_block_publishers_lost_total": "1x200",
    "stream_node_block_catch_up_stalled": "0x200",
    "stream_node_blocks_damaged": "0x200",
    "backfill_failing": "0x200",
    'backfill_source_disagrees{source="a:1"}': "0x200",
    'backfill_source_healthy{source="a:1"}': "1x200",
    "stream_node_mailboxes_full": "0x200",
}
"""The series of a node without a fault, where they are not the opposite of a fault by their absence."""
FIRES_AT = "30m"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_each_alert_fires_for_its_fault_and_for_no_healthy_node(tmp_path: Path) -> None:
    assert list(FAULTS) == [rule["alert"] for rule in ALERTS]
    done = run_promtool(
        tmp_path, [*(made_test(series, [name]) for name, series in FAULTS.items()), made_test(HEALTHY, [])]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The check can fail: a healthy node fires nothing.
    assert run_promtool(tmp_path, [made_test(HEALTHY, ["StreamNodeDown"])]).returncode != 0


def made_test(series: dict[str, str], fires: list[str]) -> dict[str, Any]:
    """A test of promtool: with these series, exactly these alerts fire."""
    firing = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": FIRES_AT, "exp_samples": firing}],
    }


def run_promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = folder / "alerts_test.yml"
    rules = str(DEPLOY / "prometheus/alerts.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "15s", "tests": tests}))
    return subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)

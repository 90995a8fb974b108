"""One story told twice: by the agent, and by a real Prometheus and Alertmanager with what is shipped for them."""

from __future__ import annotations

import copy
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.core.units import parse_duration
from gpuagent_alerts.notify.inhibition import alertmanager_rules
from gpuagent_alerts.shipped import RULES_FILE
from tests.alerts.notify.receivers.sink import Sink, sink
from tests.integration.agent import running_agent
from tests.integration.alertmanager import NAMES, configured_alertmanager
from tests.integration.prometheus import Prometheus, configured_prometheus
from tests.integration.waiting import until

SHIPPED = Path(__file__).parents[2] / "grafana/prometheus/alertmanager.yml"
SCENARIO = """\
description: GPU 1 of 3 has an Xid and is lost
gpus:
  - model: h100
    count: 3
    processes:
      - {name: trainer, user: alice, memory: 20GiB}
faults:
  - {kind: xid, gpu: 1, xid: 79, at: 5s}
  - {kind: lost, gpu: 1, at: 6s}
"""
TO_THE_WALL = """\
description: a process fills its GPU within seconds, stays for a while, and ends
gpus:
  - model: h100
    processes:
      - name: server
        user: alice
        memory: {shape: ramp, start: 50GiB, rate: 2GiB, after: 5s, cap: 79.4GiB}
        until: 65s
"""
FULL, MUTED = "GpuMemoryFull", frozenset({"GpuMemoryExhaustionSoon", "GpuMemoryHigh"})
Picture = dict[str, set[str]]


def test_the_shipped_rules_are_those_of_the_agent() -> None:
    """An Alertmanager inhibits what the agent does, by rules that are made from the same table."""
    assert yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))["inhibit_rules"] == alertmanager_rules()


@pytest.mark.needs("amtool")
def test_alertmanager_takes_the_example() -> None:
    """Its own check finds nothing wrong."""
    checked = subprocess.run(["amtool", "check-config", str(SHIPPED)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.needs(*NAMES)
@pytest.mark.needs("prometheus")
def test_who_is_told_what(folder: Path) -> None:
    """The same receivers hear of the same alerts; what a lost GPU implies is told by neither."""
    own, managers, prometheus_folder = folder / "own", folder / "am", folder / "prometheus"
    for each in (own, managers, prometheus_folder):
        each.mkdir()
    scenario = own / "scenario.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    with (
        sink() as told,
        sink() as fleet,
        configured_alertmanager(managers, quick(fleet), fleet) as manager,
        running_agent(own, scenario, **keys(told)) as agent,
    ):
        agent.wait_until_ready()
        with configured_prometheus(prometheus_folder, scraping(agent.port, manager.url)):
            until(lambda: len(picture(told)) > 1, "the agent tells", seconds=60)
            until(lambda: picture(fleet) == picture(told), "Alertmanager tells the same", seconds=60)

    both = {"GpuLost", "GpuXidCritical"}
    assert picture(told) == {"pager": both, "chat": both}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.needs(*NAMES)
@pytest.mark.needs("prometheus")
def test_the_end_of_a_full_gpu_pages_for_nothing_else(folder: Path) -> None:
    """What it muted ends with it: through the agent's Alertmanager receiver, and through Prometheus and Alertmanager.

    Prometheus has the shipped rules with a tenth of their waits.
    """
    for name in ("own", "direct", "behind", "prometheus"):
        (folder / name).mkdir()
    scenario, rules = folder / "scenario.yaml", folder / "rules.yaml"
    scenario.write_text(TO_THE_WALL, encoding="utf-8")
    rules.write_text(json.dumps(hastened(yaml.safe_load(RULES_FILE.read_text(encoding="utf-8")))), encoding="utf-8")
    with (
        sink() as from_agent,
        sink() as from_prometheus,
        configured_alertmanager(folder / "direct", quick(from_agent), from_agent) as direct,
        configured_alertmanager(folder / "behind", quick(from_prometheus), from_prometheus) as behind,
        running_agent(
            folder / "own", scenario, poll_interval="500ms",
            receivers=[{"name": "fleet", "alertmanager": {"url": direct.url}}],
        ) as agent,
    ):  # fmt: skip
        agent.wait_until_ready()
        document = scraping(agent.port, behind.url) | {"rule_files": [str(rules)]}
        with configured_prometheus(folder / "prometheus", document) as prometheus:
            until(lambda: (FULL, "resolved") in states(from_agent), "its end is told directly", seconds=120)
            until(lambda: (FULL, "resolved") in states(from_prometheus), "its end is told behind it", seconds=120)
            until(lambda: not {FULL, *MUTED} & firing(prometheus), "nothing of it fires in Prometheus")
            until(lambda: not {FULL, *MUTED} & {*direct.alerts(), *behind.alerts()}, "nothing of it fires anywhere")

    for each in (from_agent, from_prometheus):
        told = states(each)
        assert [one for one in told[told.index((FULL, "resolved")) :] if one[0] in MUTED and one[1] == "firing"] == []


def firing(prometheus: Prometheus) -> set[str]:
    """Names of what is pending or fires there."""
    return {one["labels"]["alertname"] for one in prometheus.alerts()}


def states(receiver: Sink) -> list[tuple[str, str]]:
    """What an Alertmanager told of each alert, in order."""
    bodies = [json.loads(request.body) for request in receiver.processed]
    return [(one["labels"]["alertname"], one["status"]) for body in bodies for one in body["alerts"]]


def hastened(document: dict[str, Any]) -> dict[str, Any]:
    """Rules that wait a tenth of what they do."""
    for rule in (each for group in document["groups"] for each in group["rules"]):
        for key in {"for", "keep_firing_for"} & rule.keys():
            rule[key] = f"{parse_duration(rule[key]) * 100:.0f}ms"
    return document


def quick(receiver: Sink) -> dict[str, Any]:
    """What is shipped, with receivers that listen, and without its waits."""
    document: dict[str, Any] = copy.deepcopy(yaml.safe_load(SHIPPED.read_text(encoding="utf-8")))
    document["route"] |= {"group_wait": "2s", "group_interval": "1s"}
    document["receivers"] = [
        {"name": name, "webhook_configs": [{"url": f"{receiver.url}/{name}"}] if name != "nobody" else []}
        for name in (each["name"] for each in document["receivers"])
    ]
    return document


def keys(receiver: Sink) -> dict[str, Any]:
    """Routes of the agent that mean what the shipped ones do."""
    hooks = [{"name": name, "webhook": {"url": f"{receiver.url}/{name}"}} for name in ("chat", "pager")]
    routes = [{"match": ['severity="critical"'], "receivers": ["pager"]}, {"receivers": ["chat"]}]
    return {"poll_interval": "500ms", "receivers": hooks, "routes": routes}


def scraping(port: int, manager: str) -> dict[str, Any]:
    """A Prometheus with the shipped rules."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES_FILE)],
        "scrape_configs": [{"job_name": "gpuagent", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
    }


def picture(receiver: Sink) -> Picture:
    """Which receiver was told that which alerts fire."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for request in receiver.processed:
        body = json.loads(request.body)
        name = request.path.strip("/")
        found[name] |= {one["labels"]["alertname"] for one in body["alerts"] if one["status"] == "firing"}
    return dict(found)


@pytest.mark.needs("amtool")
@pytest.mark.parametrize(
    ("status", "title"),
    [("firing", "CRITICAL n1:9837 GPU 1 is lost"), ("resolved", "RESOLVED n1:9837 GPU 1 was lost")],
)
def test_the_shipped_template_has_a_past_tense(tmp_path: Path, status: str, title: str) -> None:
    """What is over is told as over: by the text that the rules have for it."""
    labels = {"alertname": "GpuLost", "severity": "critical", "instance": "n1:9837"}
    words = {"summary": "GPU 1 is lost", "resolved_summary": "GPU 1 was lost"}
    alert = {"status": status, "labels": labels, "annotations": words}
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"status": status, "alerts": [alert], "commonLabels": labels}), encoding="utf-8")
    command = [
        "amtool", "template", "render", f"--template.glob={SHIPPED.with_name('gpuagent.tmpl')}",
        f"--template.data={data}", '--template.text={{ template "gpuagent.title" . }}',
    ]  # fmt: skip
    rendered = subprocess.run(command, capture_output=True, text=True, check=True)
    assert rendered.stdout.strip() == title

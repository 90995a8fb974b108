"""The rules for a fleet's Prometheus, by its own tools; and the shipped rules, which mean the same in both places."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.shipped import RULES_FILE
from tests.alerts.promql.promtool import scratch
from tests.integration.agent import Agent, running_agent
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.waiting import until

FOLDER = Path(__file__).parents[2] / "grafana" / "prometheus"
RULES = ("gpuagent.recording", "gpuagent.fleet")

SICK = """
description: much that fails at once, and one GPU that is well
gpus:
  - model: h100
    processes: [{name: hog, user: alice, memory: 78.8GiB, utilization: {sm: 50}}]
  - model: h100
  - model: a100
    ecc: {volatile_uncorrected: 2, remap_pending: 1, remap_failed: 1, recovery_action: 2}
  - model: h100
    memory: {base_used: 10GiB}
    processes:
      - {name: ghost, user: bob, memory: 12GiB, dead: true}
  - model: h100
    processes: [{name: server, user: svc-ml, memory: 20GiB, utilization: {sm: 10}}]
faults:
  - {kind: lost, gpu: 1}
  - {kind: xid, gpu: 4, xid: 13, at: 2s}
  - {kind: xid, gpu: 2, xid: 94, at: 3s}
  - {kind: xid, gpu: 2, xid: 79, at: 3s}
"""
FIRING = {
    ("GpuMemoryFull", "0"),
    ("GpuLost", "1"),
    ("GpuEccUncorrectable", "2"),
    ("GpuRowRemapPending", "2"),
    ("GpuRowRemapFailed", "2"),
    ("GpuRecoveryAction", "2"),
    ("GpuXidCritical", "2"),
    ("GpuXidWarning", "2"),
    ("GpuDeadProcessesHoldMemory", "3"),
    ("Watchdog", ""),
}
PENDING = {("GpuMemoryHigh", "0"), ("GpuMemoryUnattributed", "3")}


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("name", RULES)
def test_the_rules_do_what_their_tests_say(name: str, tmp_path: Path) -> None:
    """Prometheus' own unit tests, which an operator can run too."""
    done = subprocess.run(
        ["promtool", "test", "rules", f"{name}.test.yaml"],
        cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False, env=scratch(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_the_example_loads() -> None:
    """The configuration and all rule files that it names, with the agent's rules switched on as it describes."""
    text = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for name in RULES:
            (Path(folder) / f"{name}.yaml").write_bytes((FOLDER / f"{name}.yaml").read_bytes())
        (Path(folder) / "gpuagent.rules.yaml").write_bytes(RULES_FILE.read_bytes())
        (Path(folder) / "prometheus.yml").write_text(text.replace("  # - gpuagent.rules", "  - gpuagent.rules"))
        done = subprocess.run(
            ["promtool", "check", "config", "prometheus.yml"],
            cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rule files found" in done.stdout


@pytest.mark.parametrize("name", RULES)
def test_every_metric_is_in_the_catalogue_or_recorded(name: str) -> None:
    """EXP-09: a metric that is renamed takes the rules along."""
    groups = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    known = {family.name for family in FAMILIES} | {rule["record"] for rule in rules if "record" in rule}

    asked = set(re.findall(r"[a-z_:]*\bgpuagent_\w+(?::\w+)?", " ".join(rule["expr"] for rule in rules)))
    assert asked - known == set()


_QUANTITY = re.compile(r"[0-9.]+ ?(?:%|(?:[KMGTP]i)?B\b)|(?:[0-9.]+ ?(?:d|h|min|ms|m|s)\b ?)+")


class Shown(NamedTuple):
    """An alert as both tell it: without quantities, which each writes in its own format, and labels of a scrape."""

    name: str
    state: str
    gpu: str
    summary: str
    labels: frozenset[tuple[str, str]]


def _shown(name: str, state: str, labels: dict[str, str], summary: str) -> Shown:
    own = {key: value for key, value in labels.items() if value and key not in {"alertname", "job", "instance"}}
    text = _QUANTITY.sub("#", summary)
    return Shown(name, state, labels.get("gpu", ""), text, frozenset(own.items()))


def by_prometheus(server: Prometheus) -> set[Shown]:
    """What is pending or fires there."""
    return {
        _shown(alert["labels"]["alertname"], alert["state"], alert["labels"], alert["annotations"]["summary"])
        for alert in server.alerts()
    }


def by_agent(agent: Agent) -> set[Shown]:
    """What is pending or fires here."""
    return {
        _shown(alert["name"], alert["state"], alert["labels"], alert["annotations"]["summary"])
        for alert in json.loads(agent.command("alerts", "--json").stdout)["alerts"]
        if alert["state"] in {"pending", "firing"}
    }


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Agent]:
    """An agent on a node with much that fails."""
    scenario = tmp_path / "sick.yaml"
    scenario.write_text(SICK, encoding="utf-8")
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), scenario) as agent,
    ):
        agent.wait_until_ready()
        yield agent


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.needs("prometheus")
@pytest.mark.timeout(240)
def test_the_agent_and_prometheus_tell_of_the_same_alerts(sick: Agent, tmp_path: Path) -> None:
    """One rules file, two evaluators, a running system: the same alerts with the same labels and words."""
    with running_prometheus(tmp_path, {"gpuagent": sick.port}, [RULES_FILE]) as server:

        def named(alerts: set[Shown], state: str) -> set[tuple[str, str]]:
            return {(alert.name, alert.gpu) for alert in alerts if alert.state == state}

        def agreed() -> bool:
            here, there = by_agent(sick), by_prometheus(server)
            return here == there and named(here, "firing") >= FIRING

        until(agreed, "both tell the same, and all that is wrong", 150)
        here = by_agent(sick)
        assert named(here, "firing") == FIRING
        assert named(here, "pending") == PENDING

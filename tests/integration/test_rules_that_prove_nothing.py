"""Rules that are true of everybody, beside one that is true of one process: a real agent, real children."""

from __future__ import annotations

import getpass
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.remedies.processes import PLAIN, running
from tests.integration.agent import running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCENARIO = """
gpus:
  - model: h100
    processes:
      - {name: greedy, bind: greedy, memory: {shape: constant, value: 40GiB}}
      - {name: modest, bind: modest, memory: {shape: constant, value: 2GiB}}
"""
USED = "gpuagent_process_memory_used_bytes"
PROVE_NOTHING = {
    "Bare": "gpuagent_process_memory_leak_suspected",
    "Bool": f"{USED} > bool 99e9",
    "Clock": f"{USED} > 1e9 and on () (minute() >= 0)",
    "Began": "gpuagent_process_start_time_seconds > 1e9",
    "Constant": "gpuagent_gpu_memory_total_bytes > 1e9",
    "Unless": f"{USED} unless on (gpu, uuid, pid) {USED} > 20e9",
}
LIMITS = {"pause": "0s", "per_hour": 99, "per_day": 99, "unit_per_hour": 99, "cooldown": "0s", "breaker": 99}


def test_what_is_true_of_everybody_ends_nobody(folder: Path) -> None:
    """A gauge without a comparison, a clock and a capacity end no process; the log says why."""
    (folder / "node.yaml").write_text(SCENARIO)
    rules = {**PROVE_NOTHING, "TooMuch": f"{USED} > 20e9"}
    file = folder / "rules.yaml"
    listed = [{"alert": name, "expr": text} for name, text in rules.items()]
    file.write_text(json.dumps({"groups": [{"name": "mine", "interval": "1s", "rules": listed}]}))
    file.chmod(0o600)
    ladders = [
        {"match": [f'alertname="{name}"'], "victim": "newest", "steps": [{"kill": {"wait": "5s"}}]} for name in rules
    ]
    remedies = {
        "dry_run": False, "allow": {"users": [getpass.getuser()]}, "ladders": ladders, "proof": "5s", "limits": LIMITS,
    }  # fmt: skip
    with running(PLAIN) as greedy, running(PLAIN) as modest:
        bind = {"greedy": greedy.pid, "modest": modest.pid}
        keys: dict[str, Any] = {"remedies": remedies, "rule_files": [str(file)]}
        with running_agent(folder, folder / "node.yaml", bind=bind, **keys) as agent:
            agent.wait_until_ready()
            assert greedy.wait(60) == -signal.SIGKILL
            fires = {*rules, "Watchdog"} - {"TooMuch"}

            def firing() -> bool:
                alerts = json.loads(agent.get("/api/v1/alerts").body)["alerts"]
                return fires <= {each["labels"]["alertname"] for each in alerts}

            until(firing, "all of them fire", 60)
            ended = json.loads(agent.get("/api/v1/remedies").body)["remedies"]
            assert {each["alertname"] for each in ended} == {"TooMuch"}
            assert modest.poll() is None
            told = [line for line in agent.log().splitlines() if "no ladder disrupts a process because of it" in line]
            assert {name for name in rules if any(f"rule {name} " in line for line in told)} == PROVE_NOTHING.keys()

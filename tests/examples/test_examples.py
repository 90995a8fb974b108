"""Each example does what its page promises, in the real agent: one file and one line, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.overlay import EXAMPLES, ROOT, Overlay, steps
from tests.integration.agent import running_agent
from tests.integration.test_remedies import TELLS_OF_TERM, node, remedies, runs
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGES = ROOT / "docs" / "development"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
CHANGES = [name for name in NAMES if (EXAMPLES / name / "example.toml").exists()]
CALM = """
groups:
  - name: example
    rules:
      - {alert: Always, expr: vector(1), labels: {severity: warning}, annotations: {summary: It is on.}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets below it must fit into 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as path:
        yield Path(path)


def overlay(name: str, folder: Path) -> Overlay:
    """The packages with an example applied."""
    return Overlay(name, folder / "tree")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_a_page(name: str) -> None:
    """The page names the folder, and both lists have the page."""
    page = PAGES / f"{name}.md"

    assert f"examples/{name}" in page.read_text()
    assert f"({page.name})" in (PAGES / "README.md").read_text()
    assert f"development/{page.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", CHANGES)
def test_an_example_is_at_most_one_file_and_its_lines(name: str) -> None:
    """What takes more is no way in: one new file, and one line for it in a table (with its import)."""
    said = steps(name)

    assert len(said.get("file", ())) <= 1
    assert len(said["line"]) <= 3


@pytest.mark.parametrize("name", CHANGES)
def test_the_page_shows_the_lines_of_the_example(name: str) -> None:
    """A reader copies from the page: it has the very lines that are tested."""
    page = PAGES / f"{name}.md"
    shown = re.sub(r"\s+", " ", page.read_text())

    assert [line["add"] for line in steps(name)["line"] if re.sub(r"\s+", " ", line["add"]).strip() not in shown] == []


def test_a_metric_is_exported_and_documented(folder: Path) -> None:
    """The series is in `/metrics` with its help, and in the generated reference."""
    made = overlay("metric", folder)
    with running_agent(folder, "healthy", made.environment) as agent:
        agent.wait_until_ready()
        text = agent.get("/metrics").text

    assert "# HELP gpuagent_gpu_unsupported_calls NVML calls" in text
    assert re.search(r'^gpuagent_gpu_unsupported_calls\{gpu="0",.*\} \d', text, re.MULTILINE)
    assert "| `gpuagent_gpu_unsupported_calls` |" in made.run("-m", "gpuagent.core.metrics.reference")


def test_a_collector_fills_its_series_and_tells_how_it_fared(folder: Path) -> None:
    """Its figure is exported, and so is that the collector succeeded."""
    made = overlay("collector", folder)
    with running_agent(folder, "healthy", made.environment) as agent:
        agent.wait_until_ready()
        text = agent.get("/metrics").text

    assert re.search(r'^gpuagent_gpu_persistence_mode\{gpu="0",.*\} [01]', text, re.MULTILINE)
    assert re.search(r'^gpuagent_collector_success\{collector="persistence",gpu="0",.*\} 1', text, re.MULTILINE)


def test_a_receiver_is_told(folder: Path) -> None:
    """Its keys are checked and documented, and an alert arrives as a line."""
    made = overlay("receiver", folder)
    rules = folder / "rules.yaml"
    rules.write_text(CALM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(60)
        keys: dict[str, Any] = {
            "rule_files": [str(rules)],
            "receivers": [{"name": "log", "syslog": {"host": "127.0.0.1", "port": daemon.getsockname()[1]}}],
            "routes": [{"match": ['alertname="Always"'], "receivers": ["log"], "group_wait": "0s"}],
        }
        with running_agent(folder, "healthy", made.environment, **keys):
            line = daemon.recv(2000).decode()

    assert re.fullmatch(r"<28>gpuagent: SIMULATED WARNING .*It is on\.", line)
    assert "| `port` | a whole number, at least 1, at most 65535 | `514` | Its UDP port. |" in made.run(
        "-m", "gpuagent.config.reference"
    )


def test_a_receiver_has_its_faults_told(folder: Path) -> None:
    """A key of the wrong type and one that is missing are named with what is allowed."""
    made = overlay("receiver", folder)
    config = folder / "c.yaml"
    config.write_text("receivers: [{name: log, syslog: {port: 0}}]\n")

    said = subprocess.run(
        [sys.executable, "-m", "gpuagent", "config", "check", str(config)], env={**os.environ, **made.environment},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert said.returncode == 1
    assert "receivers[0].syslog.port" in said.stderr + said.stdout
    assert "receivers[0].syslog.host" in said.stderr + said.stdout


def test_a_label_of_processes_is_on_every_surface(folder: Path) -> None:
    """Series, the API's document and its description have it."""
    made = overlay("process_label", folder)
    with running_agent(folder, "healthy", made.environment) as agent:
        agent.wait_until_ready()
        text = agent.get("/metrics").text
        document = json.loads(agent.get("/api/v1/processes").body)
        described = json.loads(agent.get("/api/v1/openapi.json").body)["components"]["schemas"]["Process"]

    assert re.search(r'^gpuagent_process_info\{.*slice="system\.slice"', text, re.MULTILINE)
    assert "system.slice" in {process["slice"] for process in document["processes"]}
    assert described["properties"]["slice"]["description"] == "The outermost of systemd's slices."
    assert "slice" in described["required"]
    assert "`slice`" in made.run("-m", "gpuagent.core.metrics.reference")


def test_a_function_is_evaluated_in_a_rule(folder: Path) -> None:
    """The rules load and fire, and a text is filled in by the template function."""
    made = overlay("rule_function", folder)
    keys: dict[str, Any] = {"rule_files": [str(EXAMPLES / "rule_function" / "rules.yaml")]}
    with running_agent(folder, "healthy", made.environment, **keys) as agent:
        agent.wait_until_ready()
        for text in ("180 degrees", "It was 2015-02-25 03:28:02 +0000 UTC"):
            until(lambda text=text: text in agent.get("/api/v1/alerts").text, text)  # type: ignore[misc]


def test_a_check_of_the_doctor_is_made(folder: Path) -> None:
    """Its finding is among the others."""
    made = overlay("doctor_check", folder)

    said = subprocess.run(
        [sys.executable, "-m", "gpuagent", "doctor", "--simulate", "healthy"], env={**os.environ, **made.environment},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert re.search(r"shared memory:\s+/dev/shm has", said.stdout)


def test_a_message_of_an_app_arrives(folder: Path) -> None:
    """The agent counts the events, and shows them by name."""
    program = EXAMPLES / "client_message" / "checkpoint.py"
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        environment = {**os.environ, "GPUAGENT_SOCKET": str(folder / "cl" / "client.sock")}
        app = subprocess.Popen([sys.executable, program], env=environment, stdin=subprocess.PIPE)
        try:
            until(
                lambda: re.search(r"^gpuagent_client_events_total 2", agent.get("/metrics").text, re.MULTILINE),
                "both events were counted",
            )
            shown = json.loads(agent.get("/api/v1/clients").body)
        finally:
            app.communicate(timeout=30)

    (client,) = shown["clients"]
    assert [event["name"] for event in client["events"]] == ["checkpoint 100", "checkpoint 200"]


def test_a_step_of_ones_own_ends_the_process(folder: Path) -> None:
    """The program gets the target, drains the server and asks it to end; the step is on record."""
    program, drained = folder / "drain.py", folder / "drained"
    shutil.copy(EXAMPLES / "remedy_step" / "drain.py", program)
    command = [os.path.realpath(sys.executable), str(program), str(drained), "{pid}"]
    step = {"exec": {"command": command, "wait": "20s"}}
    with node(folder, TELLS_OF_TERM, remedies(step)) as (agent, greedy, _):
        until(drained.exists, "the server is drained")
        assert greedy.stdout.readline() == "SIGTERM\n"
        assert next(step["step"] for step in runs(agent)[0]["steps"]).startswith("exec ")


def test_the_configuration_of_the_step_has_no_fault() -> None:
    """What a reader copies is what the configuration's checks take."""
    said = subprocess.run(
        [sys.executable, "-m", "gpuagent", "config", "check", str(EXAMPLES / "remedy_step" / "gpuagent.yaml")],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert said.returncode == 0, said.stderr

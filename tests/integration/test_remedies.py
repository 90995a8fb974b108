"""Remedies as an operator meets them: a real agent, real children whose GPU memory is simulated, real signals."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.notify.receivers.sink import sink
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, running
from tests.integration.agent import GPUAGENT, Agent, command, running_agent, write_config
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]

SCENARIO = """
description: a process that has too much, and one that has not
gpus:
  - model: h100
    processes:
      - {name: greedy, bind: greedy, memory: {shape: constant, value: 40GiB}}
      - {name: modest, bind: modest, memory: {shape: constant, value: 2GiB}}
"""
RULES = """
groups:
  - name: house
    rules:
      - alert: TooMuch
        expr: gpuagent_process_memory_used_bytes > 20e9
        labels: {severity: warning}
        annotations: {summary: "{{ $labels.process }} has too much"}
"""
TELLS_OF_TERM = (
    "import signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('SIGTERM', flush=True))\n"
    "print('ready', flush=True)\n"
    "while True: signal.pause()"
)


def remedies(*steps: dict[str, Any], **keys: object) -> dict[str, Any]:
    """One ladder on TooMuch, for real, for this user's processes."""
    ladder = {"match": ['alertname="TooMuch"'], "steps": list(steps)}
    return {"dry_run": False, "allow": {"users": [getpass.getuser()]}, "ladders": [ladder], "proof": "20s", **keys}


@contextmanager
def node(folder: Path, greedy: str, what: dict[str, Any], **keys: Any) -> Iterator[tuple[Agent, Any, Any]]:
    """The agent, and its two processes."""
    (folder / "node.yaml").write_text(SCENARIO)
    (folder / "rules.yaml").write_text(RULES)
    (folder / "rules.yaml").chmod(0o600)
    with ExitStack() as stack:
        one, other = stack.enter_context(running(greedy)), stack.enter_context(running(PLAIN))
        agent = stack.enter_context(again(folder, {"greedy": one.pid, "modest": other.pid}, what, **keys))
        yield agent, one, other


@contextmanager
def again(folder: Path, bind: dict[str, int], what: dict[str, Any], **keys: Any) -> Iterator[Agent]:
    """An agent over these processes."""
    with running_agent(
        folder, folder / "node.yaml", bind=bind, remedies=what, rule_files=[str(folder / "rules.yaml")], **keys
    ) as agent:
        agent.wait_until_ready()
        yield agent


def runs(agent: Agent) -> list[dict[str, Any]]:
    """What remedies did."""
    found: list[dict[str, Any]] = json.loads(agent.get("/api/v1/remedies").body)["remedies"]
    return found


def end(agent: Agent, number: int = 0) -> dict[str, Any]:
    """How a run came to its end."""

    def look() -> Any:
        found = runs(agent)
        return found[number].get("end") if len(found) > number else None

    found: dict[str, Any] = until(look, "the remedy has ended", 60)
    return found


def test_a_ladder_from_the_rule_to_the_message(folder: Path) -> None:
    """KILL-06, KILL-07: SIGTERM is ignored, SIGKILL is not; record, series, screens and the last message tell of it."""
    what = remedies({"terminate": {"wait": "5s"}}, {"kill": {"wait": "5s"}})
    with sink() as receiver:
        hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
        with node(folder, IGNORES_TERM, what, receivers=[hook]) as (agent, greedy, modest):
            assert end(agent)["result"] == "released"
            assert greedy.wait(10) == -signal.SIGKILL
            assert modest.poll() is None
            (run,) = runs(agent)
            assert [step["step"] for step in run["steps"] if step["kind"] == "intent"] == ["SIGTERM", "SIGKILL"]
            assert run["expression"] == "gpuagent_process_memory_used_bytes > 20e9"

            def told(name: str, status: str) -> list[dict[str, Any]]:
                alerts = [alert for each in receiver.processed for alert in json.loads(each.body)["alerts"]]
                return [each for each in alerts if each["labels"]["alertname"] == name and each["status"] == status]

            (resolved,) = until(lambda: told("TooMuch", "resolved")[:1], "the resolved message")
            assert resolved["annotations"]["remedy"].startswith(f"SIGKILL of pid {greedy.pid}: ")
            bodies = [json.loads(each.body) for each in receiver.processed]
            (over,) = (each["incident"] for each in bodies if each["incident"]["news"] == "ended")
            assert over["end_reason"].startswith("gpuagent killed it (SIGKILL); 40.0 GiB came back")
            assert over["remedies"], "what was done is told with the end of what it was done for"
            shown = agent.command("remedies").stdout
            assert re.search(r"SIGTERM +\(the process ignores this signal", shown)
            assert "released, 40.0 GiB came back" in shown
            until(lambda: 'result="released",dry_run="false"} 1' in agent.get("/metrics").text, "the series")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log()


def test_by_hand_over_the_control_socket(folder: Path) -> None:
    """`gpuagent kill` ends a process that no ladder names, by the same refusals; the caller's uid is on record."""
    what = {"allow": {"users": ["nobody-at-all"]}}
    with node(folder, PLAIN, what) as (agent, greedy, modest):
        pid = str(greedy.pid)
        refused = agent.command("kill", pid, "--yes")
        assert (refused.returncode, "remedies.allow.users" in refused.stdout) == (1, True)
        dry = agent.command("kill", pid, "--force", "--dry-run")
        assert (dry.returncode, "dry run" in dry.stdout) == (0, True)
        assert greedy.poll() is None
        killed = agent.command("kill", pid, "--force", "--yes")
        assert (killed.returncode, "released" in killed.stdout) == (0, True), killed
        assert greedy.wait(10) == -signal.SIGTERM
        assert modest.poll() is None
        record = json.loads(agent.command("remedies", "--json").stdout)["remedies"]
        assert {run["asked_by"] for run in record} == {f"{getpass.getuser()} (uid {os.getuid()})"}
        assert [run["end"]["result"] for run in record] == ["refused", "dry_run", "released"]
        assert agent.command("kill", "1", "--force", "--yes").returncode == 1
        by_http = agent.get("/api/v1/processes/1/kill")
        assert by_http.status in {404, 405}  # only the control socket takes commands


CLIENT = """
import os, signal, sys
sys.path.insert(0, {package!r})
os.environ["GPUAGENT_SOCKET"] = {socket!r}
import gpuagent_client
gpuagent_client.start(app="greedy")
print("ready", flush=True)
signal.pause()
"""


def test_release_by_hand_is_on_record(folder: Path) -> None:
    """`gpuagent release`: over the control socket to the app and back; who asked stands in `gpuagent remedies`."""
    app = CLIENT.format(package=str(ROOT / "client"), socket=str(folder / "cl" / "client.sock"))
    with node(folder, app, {"allow": {"users": ["nobody-at-all"]}}) as (agent, greedy, modest):
        until(lambda: json.loads(agent.get("/api/v1/clients").body)["clients"], "the app is a client")
        pid = str(greedy.pid)
        refused = agent.command("release", pid)
        assert (refused.returncode, "remedies.allow.users" in refused.stderr) == (1, True)
        asked = agent.command("release", pid, "--force")
        assert (asked.returncode, "The app did not do it: " in asked.stderr) == (1, True), asked  # no torch
        absent = agent.command("release", str(modest.pid), "--force")
        assert (absent.returncode, "has no client that is connected" in absent.stderr) == (1, True)
        record = json.loads(agent.command("remedies", "--json").stdout)["remedies"]
        assert [run["end"]["result"] for run in record] == ["refused", "failed", "failed"]
        assert {run["asked_by"] for run in record} == {f"{getpass.getuser()} (uid {os.getuid()})"}
        assert greedy.poll() is None


def test_killed_between_intent_and_result(folder: Path) -> None:
    """The agent is killed -9 in a step: the next start closes the record as interrupted, and repeats nothing."""
    what = remedies({"terminate": {"wait": "1s"}}, {"exec": {"command": ["/bin/sleep", "1000"], "wait": "10m"}})
    with node(folder, TELLS_OF_TERM, what) as (agent, greedy, modest):

        def second_step() -> bool:
            return any(step["step"].startswith("exec") for run in runs(agent) for step in run["steps"])

        until(second_step, "the second step", 60)
        assert runs(agent)[0]["steps"][-1]["kind"] == "intent"
        agent.process.kill()
        agent.process.wait()
        with again(folder, {"greedy": greedy.pid, "modest": modest.pid}, what) as second:
            assert end(second)["result"] == "interrupted"
            assert end(second, 1)["result"] == "refused"  # the alert fires still, and the program cools down
            assert runs(second)[0]["steps"][-1]["kind"] == "intent"
            assert "it is not repeated" in second.log()
        greedy.kill()
        assert greedy.stdout.read().split() == ["SIGTERM"]


def test_who_can_write_the_rules_names_the_victims(folder: Path) -> None:
    """A rule file that others may write is refused while remedies are on; at a reload all goes on as before."""
    what = remedies({"terminate": {}}, ladders=[])
    with node(folder, PLAIN, what) as (agent, greedy, _):
        (folder / "rules.yaml").chmod(0o666)
        write_config(folder, agent.port, remedies=remedies({"kill": {}}), rule_files=[str(folder / "rules.yaml")])
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_until_logged("the new configuration is refused, the old one stays")
        assert "rules.yaml is writable by everybody" in agent.log()
        assert agent.get("/-/ready").status == 200
        assert "gpuagent_remedy_ladders 0" in agent.get("/metrics").text
        assert greedy.poll() is None
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()
    refused = command("run", "--config", str(folder / "gpuagent.yaml"), "--simulate", str(folder / "node.yaml"))
    assert refused.returncode == 78
    assert "rules.yaml is writable by everybody" in refused.stderr


def test_a_program_that_is_opened_up_later_is_not_run(folder: Path) -> None:
    """The first run of a program lets everybody write it, so that there is no second one: each run is checked."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\necho run >>{folder}/ran\nchmod o+w {program}\n")
    program.chmod(0o755)
    step = {"exec": {"command": [str(program)], "wait": "1s"}}
    with node(folder, PLAIN, remedies(step, step)) as (agent, greedy, _):
        assert end(agent)["result"] != "released"
        said = json.dumps(runs(agent)[0]["steps"])
        assert f"the program is not run: {program} is writable by everybody: cp {program} " in said
        assert (folder / "ran").read_text() == "run\n"
        assert greedy.poll() is None
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()


@pytest.mark.exhaustive  # CI runs `make demo`
def test_the_demo() -> None:
    """The whole story: every step is seen and said, and nothing is left behind."""
    shown = subprocess.run([*GPUAGENT, "demo"], capture_output=True, text=True, timeout=150, check=False)
    assert shown.returncode == 0, shown.stdout
    for word in ("leak", "webhook", "SIGTERM", "released", "resolved", "untouched: server", "every step was seen"):
        assert word in shown.stdout, shown.stdout
    _nothing_left(shown.stdout)


def test_the_demo_is_interrupted() -> None:
    """Ctrl-C in the middle: exit status 130, and neither a process nor a folder is left."""
    process = subprocess.Popen([*GPUAGENT, "demo"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "waiting for the leak" in line:
                process.send_signal(signal.SIGINT)
                break
        said += process.stdout.read()
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    _nothing_left(said)


def _nothing_left(said: str) -> None:
    pids = re.findall(r"pid (\d+) \(\w+\) is a real process", said)
    (folder,) = set(re.findall(r"--socket (/tmp/gpuagent-demo-\w+)/", said))
    assert len(pids) == 3
    assert not Path(folder).exists()
    commands = _commands()
    assert [pid for pid in pids if b"demo/child.py" in commands.get(pid, b"")] == []
    assert not any(folder.encode() in text for text in commands.values())


def _commands() -> dict[str, bytes]:
    """Every process with its command line; one that ends meanwhile has none."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found[path.parent.name] = path.read_bytes()
    return found


STALL = """
description: a GB10 on which a job takes all memory
host:
  memory: 128GiB
  used: 9GiB
  page_cache: 4GiB
  pressure: {shape: steps, points: [[0s, 0], [10s, 30]]}
  full_pressure: {shape: steps, points: [[0s, 0], [10s, 15]]}
gpus:
  - model: gb10
    processes:
      - {name: greedy, bind: greedy, memory: {shape: ramp, start: 40GiB, rate: 4GiB, after: 2s, cap: 106GiB}}
      - {name: modest, bind: modest, memory: {shape: constant, value: 8GiB}}
"""


def test_a_machine_that_is_about_to_stall(folder: Path) -> None:
    """NUM-05: page cache and the app's cache first, each in its second, then the job ends; memory is left."""
    steps: list[dict[str, Any]] = [
        {"drop_caches": {"wait": "1s"}}, {"release_cache": {"wait": "1s"}}, {"notify": {"wait": "1s"}},
        {"terminate": {"wait": "3s"}}, {"kill": {}},
    ]  # fmt: skip
    ladder = {"match": ['alertname="GpuMemoryStallImminent"'], "victim": "largest", "steps": steps}
    what = {"dry_run": False, "allow": {"users": [getpass.getuser()]}, "ladders": [ladder]}
    (folder / "node.yaml").write_text(STALL)
    (folder / "rules.yaml").write_text(RULES)
    (folder / "rules.yaml").chmod(0o600)
    with ExitStack() as stack:
        greedy, modest = (stack.enter_context(running(PLAIN)) for _ in range(2))
        agent = stack.enter_context(again(folder, {"greedy": greedy.pid, "modest": modest.pid}, what))
        assert end(agent)["result"] in {"released", "resolved"}
        assert greedy.wait(10) == -signal.SIGTERM
        assert modest.poll() is None
        (run,) = runs(agent)
        taken = [step["step"] for step in run["steps"] if step["kind"] == "intent"]
        assert taken == ["drop_caches", "release_cache", "notify", "SIGTERM"]
        first = next(step for step in run["steps"] if step["kind"] == "result")
        assert "a scenario is played" in first["detail"]

"""Alerting as it is lived with: a real agent, a real receiver, kill -9 in between, and the commands as processes."""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.notify.receivers.sink import Reply, Sink, always, sink
from tests.integration.agent import Agent, running_agent, write_config
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCENARIO = """\
description: GPU 0 is full until %s
gpus:
  - model: h100
    processes:
      - {name: trainer, user: alice, memory: 75GiB, until: %s}
  - model: h100
"""
RULES = """\
groups:
  - name: mine
    interval: 1s
    rules:
      - alert: Full
        expr: gpuagent_gpu_memory_used_ratio > 0.9
        for: 1s
        labels: {severity: critical}
        annotations: {summary: "GPU {{ $labels.gpu }} is full"}
"""


@pytest.fixture
def receiver() -> Iterator[Sink]:
    """Takes everything."""
    with sink() as made:
        yield made


def keys(folder: Path, receiver: Sink, **more: object) -> dict[str, Any]:
    """Of a configuration with one rule and one webhook."""
    rule_file = folder / "rules.yaml"
    rule_file.write_text(RULES, encoding="utf-8")
    hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
    return {"poll_interval": "500ms", "rule_files": [str(rule_file)], "receivers": [hook], **more}


def told(receiver: Sink) -> list[tuple[str, str]]:
    """Status and alert of what it took, but for what is about other things."""
    found = []
    for request in receiver.processed:
        body = json.loads(request.body)
        found += [(alert["status"], alert["labels"]["alertname"]) for alert in body["alerts"]]
    return [one for one in found if one[1] in {"Full", "GpuagentTest"}]


def shown(agent: Agent, name: str = "Full") -> Any:
    """The alert as `gpuagent alerts --json` tells it; None if there is none."""
    document = json.loads(agent.command("alerts", "--json").stdout)
    return next((alert for alert in document["alerts"] if alert["name"] == name), None)


def wait_until_firing(agent: Agent) -> None:
    """Until the commands tell so."""
    agent.wait_until_ready()
    until(lambda: (shown(agent) or {}).get("state") == "firing", f"Full is firing; {agent.log()}")


def is_recorded(agent: Agent) -> bool:
    """Whether the agent has recorded every delivery; what was taken and not recorded is sent once more."""
    (hook,) = json.loads(agent.command("receivers", "list", "--json").stdout)["receivers"]
    return bool(hook["sent"]) and not hook["queued"]


def full_until(folder: Path, age: str) -> Path:
    """A scenario in which GPU 0 is full, for so long."""
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO % (age, age), encoding="utf-8")
    return path


def test_kill_9_while_it_fires(folder: Path, receiver: Sink) -> None:
    """ALERT-08: the alert is told once over a kill -9, and its end is told by the next agent."""
    with running_agent(folder, full_until(folder, "10h"), **keys(folder, receiver)) as agent:
        wait_until_firing(agent)
        until(lambda: is_recorded(agent), "the agent has recorded that its message was taken")
        agent.process.kill()
        agent.process.wait()

    with running_agent(folder, full_until(folder, "6s"), **keys(folder, receiver)) as agent:
        until(lambda: len(told(receiver)) > 1, "the end is told")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()

    assert told(receiver) == [("firing", "Full"), ("resolved", "Full")]


def test_a_receiver_that_was_down(folder: Path, receiver: Sink) -> None:
    """ALERT-07: what a receiver did not take is kept over kill -9, and polling goes on meanwhile."""
    receiver.behave = always(Reply(503))
    with running_agent(folder, full_until(folder, "10h"), **keys(folder, receiver)) as agent:
        wait_until_firing(agent)
        receiver.wait(lambda seen: bool(seen.asked))
        assert agent.get("/-/ready").status == 200
        agent.process.kill()
        agent.process.wait()
    first = receiver.asked[0].headers["webhook-id"]

    receiver.behave = always(Reply())
    with running_agent(folder, full_until(folder, "10h"), **keys(folder, receiver)):
        receiver.wait(lambda seen: bool(seen.processed))

    assert receiver.processed[0].headers["webhook-id"] == first
    assert told(receiver) == [("firing", "Full")]


def test_the_commands(folder: Path, receiver: Sink) -> None:
    """What fires is shown in 80 columns; silence, acknowledgement and test do what they say."""
    with running_agent(folder, full_until(folder, "10h"), **keys(folder, receiver)) as agent:
        wait_until_firing(agent)
        until(lambda: told(receiver), "the message")

        acknowledged = agent.command("ack", "Full", "--comment", "at it")
        assert (acknowledged.returncode, acknowledged.stderr) == (0, "")
        assert agent.command("ack", "Nothing").returncode == 1

        silenced = agent.command("silence", "add", 'gpu=~"0|1"', "--for", "2h", "--comment", "driver work")
        silence = silenced.stdout.strip()
        assert shown(agent)["silenced_by"] == [silence]
        assert shown(agent)["acknowledged_by"]

        screen = agent.command("alerts")
        assert (screen.returncode, screen.stderr) == (0, "")
        for words in ("FIRING   Full, critical", "GPU 0 is full", "goes to hook", f"silenced by {silence}"):
            assert words in screen.stdout
        assert max(len(line) for line in screen.stdout.splitlines()) <= 80
        assert "driver work" in agent.command("silence", "list").stdout

        assert agent.command("silence", "expire", silence).returncode == 0
        assert agent.command("silence", "expire", "nothing").returncode == 1
        assert shown(agent)["silenced_by"] == []

        taken = agent.command("receivers", "test", "hook")
        assert (taken.returncode, taken.stdout) == (0, "hook accepted the message.\n")
        receiver.behave = always(Reply(404))
        refused = agent.command("receivers", "test", "hook")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "404" in refused.stderr
        assert "there is no receiver nobody" in agent.command("receivers", "test", "nobody").stderr

    assert told(receiver) == [("firing", "Full"), ("firing", "GpuagentTest"), ("resolved", "GpuagentTest")]


def test_dead_letters(folder: Path, receiver: Sink) -> None:
    """What a receiver refuses for good is shown with the reason, and arrives after a replay."""
    receiver.behave = always(Reply(400))
    with running_agent(folder, full_until(folder, "10h"), **keys(folder, receiver)) as agent:
        agent.wait_until_ready()

        def letters() -> Any:
            return json.loads(agent.command("alerts", "--dead", "--json").stdout)["dead"]

        (letter,) = until(letters, "a dead letter")
        assert letter["alerts"] == ["Full"]
        assert letter["id"] in agent.command("alerts", "--dead").stdout
        assert agent.command("receivers", "replay", "nothing").returncode == 1

        receiver.behave = always(Reply())
        assert agent.command("receivers", "replay", letter["id"]).stdout == "Queued 1 message again.\n"
        receiver.wait(lambda seen: bool(seen.processed))
        assert receiver.processed[0].headers["webhook-id"] == letter["id"]


def test_a_credential_of_systemd(folder: Path, receiver: Sink) -> None:
    """A relative `url_file` is what `LoadCredential=` has put into $CREDENTIALS_DIRECTORY."""
    credentials = folder / "credentials"
    credentials.mkdir(mode=0o700)
    (credentials / "hook_url").write_text(f"{receiver.url}/hook\n", encoding="utf-8")
    hook = {"name": "hook", "webhook": {"url_file": "hook_url"}}
    environment = {"CREDENTIALS_DIRECTORY": str(credentials)}
    settings = keys(folder, receiver, receivers=[hook])
    with running_agent(folder, full_until(folder, "10h"), environment, **settings) as agent:
        agent.wait_until_ready()
        receiver.wait(lambda seen: bool(seen.processed))
        assert receiver.processed[0].path == "/hook"


def test_over_to_prometheus_and_nobody_is_left_with_an_open_alert(folder: Path, receiver: Sink) -> None:
    """A reload with `alerting: prometheus` closes what was told; the alert itself goes on, and is seen."""
    settings = keys(folder, receiver)
    with running_agent(folder, full_until(folder, "10h"), **settings) as agent:
        wait_until_firing(agent)
        until(lambda: told(receiver), "the message")
        write_config(folder, agent.port, **settings, alerting="prometheus")
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: len(told(receiver)) > 1, "the end is told")
        assert shown(agent)["state"] == "firing"
        assert "only heartbeats are sent" in agent.command("receivers", "list").stdout
        assert agent.stop() == 0

    assert told(receiver) == [("firing", "Full"), ("resolved", "Full")]


def test_messages_lead_to_this_agent(folder: Path, receiver: Sink) -> None:
    """An agent that others reach names its own address, and shipped rules lead to the runbooks that are configured."""
    port = free_port()
    more = {"listen": f"0.0.0.0:{port}", "links": {"runbook": "https://wiki.example.org/gpu"}}
    scenario = folder / "full.yaml"
    scenario.write_text(SCENARIO % ("never", "10h"), encoding="utf-8")
    with running_agent(folder, scenario, speed=20, **keys(folder, receiver, **more)):

        def links() -> dict[str, str]:
            found = (json.loads(request.body)["incident"] for request in receiver.processed)
            every = (one["links"] for one in found if one is not None)
            return next((one for one in every if "runbook" in one), {})

        until(links, "an alert of a shipped rule is told")
        assert links()["page"] == f"http://{platform.node()}:{port}/"
        assert links()["runbook"].startswith("https://wiki.example.org/gpu/Gpu")
        urls = {one["generatorURL"] for request in receiver.processed for one in json.loads(request.body)["alerts"]}
        assert urls == {f"http://{platform.node()}:{port}/"}

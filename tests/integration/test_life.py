"""The agent's life as a process: starting, reloading, being killed, stopping while the driver hangs."""

from __future__ import annotations

import ctypes
import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.integration.agent import Agent, command, running_agent, write_config
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HANGING = """\
description: every call into the driver hangs
gpus:
  - model: h100
    count: 2
    processes:
      - {name: trainer, user: alice, memory: 10GiB}
faults:
  - {kind: hang, at: %s}
"""

TWENTY_FAULTS = """\
poll_interval: potato
slow_interval: -3s
listen: nowhere
web_config_file: 7
state_dir: []
runtime_dir: {}
alerting: everywhere
processes:
  top: many
  command: perhaps
  redact: ["("]
  topp: 3
leaks: {sensitivity: deaf}
log: {level: loud, format: prose}
nvml: {stuck_after: never}
http: {max_connections: 0, request_timeout: 1h}
rule_files: 5
disabled_rules: [[]]
recievers: []
"""


def has_driver() -> bool:
    """Whether this machine has the real library."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def shown_processes(agent: Agent) -> int:
    """How many series of process memory GPU 0 has."""
    lines = agent.get("/metrics").text.splitlines()
    return sum(line.startswith('gpuagent_process_memory_used_bytes{gpu="0"') for line in lines)


@pytest.mark.parametrize(
    ("at", "symptom"),
    [("0s", r"^gpuagent_nvml_up 0$"), ("3s", r"^gpuagent_gpu_blind\{gpu=\"1\",.*\} 1$")],
    ids=["from the start", "later"],
)
def test_it_stops_in_time_while_every_call_hangs(folder: Path, at: str, symptom: str) -> None:
    """GPU-11, GPU-04: a stuck driver neither holds up a stop nor silences /metrics, be it stuck from the first call."""
    scenario = folder / "hanging.yaml"
    scenario.write_text(HANGING % at, encoding="utf-8")
    sign = re.compile(symptom, re.MULTILINE)

    with running_agent(folder, scenario, poll_interval="200ms", nvml={"stuck_after": "500ms"}) as agent:
        agent.wait_until_listening()
        until(lambda: sign.search(agent.get("/metrics").text), f"{symptom} in /metrics")

        assert agent.get("/-/healthy").status == 200
        assert agent.stop() == 0


def test_a_bad_configuration_is_refused_and_a_good_one_taken(folder: Path) -> None:
    """SIGHUP with a bad file keeps what was in force and logs every fault; with a good one it applies."""
    with running_agent(folder, "crowd") as agent:
        agent.wait_until_ready()
        assert shown_processes(agent) == 64

        write_config(folder, agent.port, processes={"top": -5}, poll_intervall="1s")
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_until_logged("the new configuration is refused, the old one stays")
        agent.wait_until_logged("processes.top: -5")
        agent.wait_until_logged("did you mean poll_interval?")
        assert shown_processes(agent) == 64

        write_config(folder, agent.port, processes={"top": 3})
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: shown_processes(agent) == 3 + 1, "3 processes and one for all others")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()


def test_a_second_agent_on_the_same_socket_is_turned_away(folder: Path) -> None:
    """Two agents would fight over the socket: the second ends with 71 and says so, the first does not notice."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        config = folder / "second.yaml"
        keys = json.loads((folder / "gpuagent.yaml").read_text(encoding="utf-8"))
        config.write_text(json.dumps(keys | {"listen": f"127.0.0.1:{free_port()}"}), encoding="utf-8")

        second = command("run", "--simulate", "healthy", "--config", str(config))

        assert second.returncode == 71
        assert f"another gpuagent is running: it answers on {agent.control_socket}" in second.stderr
        assert "Traceback" not in second.stderr
        assert agent.command("status").returncode == 0


def test_a_port_in_use_is_said_in_words(folder: Path) -> None:
    """Whoever started the agent learns which port is taken, and gets 71."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        refused = command("run", "--simulate", "healthy", "--config", str(write_config(folder, port)))

    assert refused.returncode == 71
    assert f"cannot listen on 127.0.0.1:{port}: port {port} is in use" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (folder / "run" / "control.sock").exists()


def test_every_fault_of_a_configuration_is_told_at_once(folder: Path) -> None:
    """A start with 20 faults ends with 78 and 20 lines, each with its line in the file."""
    config = folder / "faulty.yaml"
    config.write_text(TWENTY_FAULTS, encoding="utf-8")

    refused = command("run", "--simulate", "healthy", "--config", str(config))

    lines = refused.stderr.splitlines()
    assert refused.returncode == 78
    assert len(lines) == 20
    assert all(line.startswith(f"{config}:") for line in lines)


def test_it_comes_back_after_kill_9(folder: Path) -> None:
    """A socket file that a killed agent has left behind does not keep the next one from starting."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        agent.process.kill()
        agent.process.wait()
        assert agent.control_socket.is_socket()

    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        assert agent.command("status").returncode == 0
        assert agent.stop() == 0
        assert not agent.control_socket.exists()


@pytest.mark.skipif(has_driver(), reason="this machine has libnvidia-ml.so.1: nothing to miss")
def test_it_stays_up_without_a_driver(folder: Path) -> None:
    """GPU-06: without libnvidia-ml the agent runs, is healthy and not ready, says why, and says it once."""
    with running_agent(folder, None, poll_interval="200ms") as agent:
        agent.wait_until_listening()
        until(lambda: "libnvidia-ml.so.1" in agent.get("/-/ready").text, "/-/ready tells what is missing")

        assert agent.get("/-/ready").status == 503
        assert agent.get("/-/healthy").status == 200
        metrics = agent.get("/metrics")
        assert metrics.status == 200
        assert "gpuagent_nvml_up 0\n" in metrics.text
        assert "gpuagent_gpus_readable 0\n" in metrics.text
        assert "libnvidia-ml.so.1" in agent.status()["problems"][0]["text"]
        assert agent.stop() == 0
        assert agent.log().count("no GPU can be read") == 1


def test_without_patterns_of_its_own_no_engine_for_them_is_loaded(folder: Path) -> None:
    """RE2 is 2.4 MiB in memory: the shipped rules, while they fire, and the names of known servers do not need it."""
    with running_agent(folder, "leak") as agent:
        agent.wait_until_ready()
        loaded = Path(f"/proc/{agent.process.pid}/maps").read_text(encoding="utf-8")

    assert "sqlite3" in loaded  # libraries are named there
    assert "_re2" not in loaded

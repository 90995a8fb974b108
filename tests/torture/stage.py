"""A real agent at work, with everything around it that goes on while something is going wrong.

Five simulated GPUs: nothing ever happens to GPU 0; troubles happen to GPU 1; GPU 2 is full for ever (`Steady` fires and
must go on); GPU 3 is filled and emptied by the test (`Bell`: an alert that must be told); GPU 4 is divided into MIG
instances that come and go. Short-lived processes come and go on all of them, and two are real.
"""

from __future__ import annotations

import getpass
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from tests.alerts.notify.receivers.sink import Sink, sink
from tests.exporters.certificates import Authority
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until
from tests.torture.crowd import crowd
from tests.torture.scraper import Scraper
from tests.torture.shim import Shim

CROWD = 8
VICTIM, STEADY, BELL = 1, 2, 3
_NO_CAP = 100_000
"""Messages an hour: a stage has more than a person would be told."""
_NOBODY_IN_PARTICULAR = 64999
"""A user id of no account, so that what a crowd may do is not what this user may do."""
_HOSTILE = (
    "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R 1 (\\n\\xff\"', 0, 0, 0);"
    "print('ready', flush=True); import signal; signal.pause()"
)
_HOSTILE_WORDS = ('\x1b[31m"}\n# HELP x', b"\xff\xfe\x80", "token=s3cret", "x" * 100_000)
# By uuid: where a GPU vanishes, those behind it move up, and an alert that has the index in its labels is another one.
_RULES = """\
groups:
  - name: torture
    interval: 200ms
    rules:
      - {alert: Steady, expr: 'max by (uuid) (gpuagent_gpu_memory_used_ratio{uuid="GPU-2"}) > 0.9'}
      - {alert: TooMuch, expr: 'gpuagent_process_memory_used_bytes > 20e9', labels: {severity: warning}}
"""
_BELL_RULES = """  - name: ring {ring}
    interval: 200ms
    rules:
      - alert: Bell
        expr: max by (uuid) (gpuagent_gpu_memory_used_ratio{{uuid="GPU-3"}}) > 0.9
        labels: {{ring: "{ring}"}}
"""


def scenario(faults_file: Path) -> str:
    """The node, as YAML."""
    passing = '{name: "passing-{n}", user: u, memory: 64MiB, count: 2000, every: 300ms, life: 2s}'
    # The same instance is made and unmade again and again, with another one beside it.
    instances = ", ".join(
        f"{{gpu_instance: {1 + turn % 2}, profile: 1g.10gb, memory: 10GiB, uuid: MIG-{turn}, "
        f"from: {turn * 4}, until: {turn * 4 + 3}}}"
        for turn in range(500)
    )
    return f"""\
faults_file: {faults_file}
gpus:
  - {{model: h100, uuid: GPU-0, processes: [{{name: modest, bind: modest, memory: 2GiB}}, {passing}]}}
  - {{model: h100, uuid: GPU-1, processes: [{{name: bystander, bind: bystander, memory: 2GiB}}, {passing}]}}
  - {{model: h100, uuid: GPU-2, memory: {{total: 80GiB, base_used: 76GiB}}}}
  - {{model: h100, uuid: GPU-3, processes: [{passing}]}}
  - {{model: h100, uuid: GPU-4, mig: [{instances}]}}
"""


class Faults:
    """What goes wrong with the driver, by the file that the simulated node follows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._given: list[dict[str, Any]] = []

    @contextmanager
    def holding(self, *faults: Mapping[str, Any]) -> Iterator[None]:
        """These too, for as long as it lasts."""
        added = [dict(fault) for fault in faults]
        self._given += added
        self._write()
        try:
            yield
        finally:
            self._given = [fault for fault in self._given if all(fault is not one for one in added)]
            self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"faults": self._given}), encoding="utf-8")
        new.rename(self.path)


@dataclass(frozen=True, slots=True)
class Size:
    """What the agent takes of the machine."""

    resident_bytes: int
    descriptors: int
    threads: int


@dataclass
class Stage:
    """All of it, while it runs."""

    agent: Agent
    shim: Shim
    faults: Faults
    good: Sink
    other: Sink
    untrusted: Sink
    """Its certificate is of an authority that nobody knows: it is never told anything."""
    scraper: Scraper
    bystanders: list[Popen[bytes]]
    folder: Path
    rings: int = 0
    """How often Bell has fired so far."""
    lost_rings: int = 0
    """Those of which the other receiver never hears: it refused them for good."""
    baseline: Size = field(default_factory=lambda: Size(0, 0, 0))

    @property
    def pid(self) -> int:
        """Of the agent."""
        return self.agent.process.pid

    @property
    def client_socket(self) -> Path:
        """Where apps connect."""
        return self.agent.folder / "cl" / "client.sock"

    @property
    def state_file(self) -> Path:
        """What must survive."""
        return self.agent.folder / "state" / "state.db"

    def hang_bell(self, ring: int) -> None:
        """What rings next is an incident of its own: of one that begins again, the end is told after 10 min of calm."""
        write_rules(self.folder, ring)
        reloaded = self.agent.command("config", "reload")
        assert reloaded.returncode == 0, reloaded

    def size(self) -> Size:
        """What it takes now."""
        process = Path("/proc") / str(self.pid)
        pages = int((process / "statm").read_text().split()[1])
        return Size(
            resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
            descriptors=len(list((process / "fd").iterdir())),
            threads=len(list((process / "task").iterdir())),
        )

    def metric(self, start: str) -> float | None:
        """The first series that begins so, by the control socket; None where there is none."""
        for line in self.scraper.over("control").decode().splitlines():
            if line.startswith(start):
                return float(line.rpartition(" ")[2])
        return None

    def settled(self) -> bool:
        """Every GPU is read, and every app of the crowd is connected."""
        return self.metric("gpuagent_gpus_readable") == 5 and self.metric("gpuagent_clients ") == CROWD


@contextmanager
def bystander(program: str, *words: str | bytes) -> Iterator[Popen[bytes]]:
    """A process that must live; the test ends it."""
    process = Popen([sys.executable, "-c", program, *words], stdin=DEVNULL, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def write_rules(folder: Path, ring: int = 0) -> Path:
    """The rule file, with the Bell of this ring."""
    path = folder / "rules.yaml"
    path.write_text(_RULES + _BELL_RULES.format(ring=ring), encoding="utf-8")
    path.chmod(0o600)
    return path


def keys(folder: Path, good: Sink, other: Sink, untrusted: Sink) -> dict[str, Any]:
    """The agent's configuration. Remedies are armed: only that no alert is true keeps everybody alive."""
    rules = write_rules(folder)
    hook = {"name": "good", "webhook": {"url": f"{good.url}/hook"}, "max_messages_per_hour": _NO_CAP}
    # By its name, so that it has to be looked up.
    bad = {
        "name": "other",
        "webhook": {"url": f"http://localhost:{other.port}/hook"},
        "max_messages_per_hour": _NO_CAP,
    }
    tls = {"name": "untrusted", "webhook": {"url": f"https://localhost:{untrusted.port}/hook"}}
    ladder = {"match": ['alertname="TooMuch"'], "steps": [{"terminate": {"wait": "2s"}}, {"kill": {"wait": "2s"}}]}
    return {
        "poll_interval": "200ms",
        "slow_interval": "1s",
        "nvml": {"stuck_after": "500ms"},
        "http": {"response_timeout": "2s", "request_timeout": "1s"},
        "rule_files": [str(rules)],
        "receivers": [hook, bad, tls],
        "routes": [
            {
                "match": ['alertname=~"Steady|Bell"'],
                "receivers": ["good", "other", "untrusted"],
                "group_wait": "1s",
                "repeat_interval": "365d",
            },
        ],
        "remedies": {
            "dry_run": False,
            "allow": {"users": [getpass.getuser()], "min_age": "0s"},
            "ladders": [ladder],
        },
    }


def _server_context(folder: Path) -> ssl.SSLContext:
    Authority().issue("localhost").write(folder, "untrusted")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "untrusted.crt", folder / "untrusted.key")
    return context


@contextmanager
def stage(folder: Path, library: Path) -> Iterator[Stage]:
    """An agent that has settled, in a folder whose path is short."""
    folder.chmod(0o755)  # the crowd is of another user
    faults = Faults(folder / "faults.json")
    path = folder / "scenario.yaml"
    path.write_text(scenario(faults.path), encoding="utf-8")
    shim = Shim(library, folder, folder / "state")
    with ExitStack() as stack:
        good, other = stack.enter_context(sink()), stack.enter_context(sink())
        untrusted = stack.enter_context(sink(tls=_server_context(folder)))
        modest = stack.enter_context(bystander(_HOSTILE))
        second = stack.enter_context(bystander(_HOSTILE, *_HOSTILE_WORDS))
        bind = {"modest": modest.pid, "bystander": second.pid}
        agent = stack.enter_context(
            running_agent(folder, path, shim.environment, bind=bind, **keys(folder, good, other, untrusted))
        )
        agent.wait_until_ready()
        scraper = stack.enter_context(Scraper(agent.control_socket, agent.port))
        made = Stage(agent, shim, faults, good, other, untrusted, scraper, [modest, second], folder)
        uid = _NOBODY_IN_PARTICULAR if os.getuid() == 0 else None
        stack.enter_context(crowd(made.client_socket, CROWD, uid))
        until(made.settled, "all GPUs are read and the crowd is there", 60)
        time.sleep(1)  # caches fill, lazily made parts are made
        made.baseline = made.size()
        made.scraper.take()
        yield made

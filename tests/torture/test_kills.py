"""SIGKILL at random points of an agent's life: nothing durable is lost, whatever it was at."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.alerts.notify.receivers.sink import sink
from tests.integration.agent import write_config
from tests.integration.waiting import free_port, until
from tests.torture import times
from tests.torture.lives import Zygote, zygote
from tests.torture.receivers import told, told_of_rings
from tests.torture.stage import Faults

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = times(50, 500)
_RULES = """\
groups:
  - name: torture
    interval: 200ms
    rules:
      - {{alert: Steady, expr: 'gpuagent_gpu_memory_used_ratio{{gpu="0"}} > 0.9'}}
  - name: ring {ring}
    interval: 200ms
    rules:
      - {{alert: Bell, expr: 'gpuagent_gpu_memory_used_ratio{{gpu="1"}} > 0.9', labels: {{ring: "{ring}"}}}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)


def test_killed_anywhere_it_forgets_nothing(folder: Path) -> None:
    """ALERT-08, GPU-12: after every kill the state is whole and its owner's alone; in the end all was told, once."""
    (folder / "scenario.yaml").write_text(
        f"faults_file: {folder / 'faults.json'}\n"
        "gpus: [{model: h100, memory: {total: 80GiB, base_used: 76GiB}}, {model: h100}]\n"
    )
    bell = Bell(folder)
    chance = random.Random(3)
    with ExitStack() as stack, sink() as receiver:
        config = write_config(
            folder, free_port(), poll_interval="100ms", rule_files=[str(folder / "rules.yaml")],
            receivers=[
                {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}, "max_messages_per_hour": 100_000}
            ],
            routes=[{"match": ['alertname=~"Steady|Bell"'], "receivers": ["hook"], "group_wait": "0s"}],
        )  # fmt: skip
        agents = stack.enter_context(zygote(config, folder / "scenario.yaml", folder / "log"))
        for _ in range(KILLS):
            live_and_die(agents, chance, bell, folder / "state" / "state.db")
        with bell.rung():
            agents.start()  # this one may live
            until(lambda: told_of_rings(receiver).get(bell.ring) == ["firing"], "the last ring is told")
        until(lambda: told_of_rings(receiver)[bell.ring] == ["firing", "resolved"], "and its end")

        rings = told_of_rings(receiver)
        assert len(rings) > KILLS / 10, "the lives were too short to tell of anything"
        assert {ring: each for ring, each in rings.items() if each != ["firing", "resolved"]} == {}
        assert told(receiver, "Steady") == ["firing"]
    assert "Traceback" not in (folder / "log").read_text()


class Bell:
    """What rings in one life, or in several without a break, is one incident. After a break it is another one."""

    def __init__(self, folder: Path) -> None:
        self._rules = folder / "rules.yaml"
        self._faults = Faults(folder / "faults.json")
        self._ring = 0
        self._goes_on = False
        self._rules.write_text(_RULES.format(ring=0))

    @property
    def ring(self) -> str:
        """What the label of its last ring says."""
        return str(self._ring)

    @contextmanager
    def rung(self) -> Iterator[None]:
        """From before an agent starts until it is dead: a break that it sees would be a second beginning."""
        if not self._goes_on:
            self._ring += 1
            self._rules.write_text(_RULES.format(ring=self._ring))
        self._goes_on = True
        with self._faults.holding({"kind": "full", "gpu": 1}):
            yield

    @contextmanager
    def silent(self) -> Iterator[None]:
        """As long."""
        self._goes_on = False
        yield


def live_and_die(agents: Zygote, chance: random.Random, bell: Bell, state: Path) -> None:
    """A life of up to two seconds, most of them short; in half of them Bell rings. Then see what is left."""
    with bell.rung() if chance.random() < 0.5 else bell.silent():
        pid = agents.start()
        time.sleep(2 * chance.random() ** 2)
        os.kill(pid, signal.SIGKILL)
    assert agents.reap() == signal.SIGKILL
    if not state.exists():
        return
    assert not list(state.parent.glob("state.db.corrupt*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.parent.glob("state.db*")} == {0o600}
    db = sqlite3.connect(state)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if db.execute("PRAGMA user_version").fetchone() != (0,):
            for (dump,) in db.execute("SELECT dump FROM instances"):
                json.loads(dump)
    finally:
        db.close()

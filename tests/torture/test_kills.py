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
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.alerts.receivers.sink import sink
from tests.integration.agent import write_config
from tests.integration.waiting import free_port, until
from tests.torture import times
from tests.torture.lives import Zygote, zygote
from tests.torture.receivers import told
from tests.torture.stage import Faults

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = times(50, 500)
_RULES = """\
groups:
  - name: torture
    interval: 200ms
    rules:
      - {alert: Steady, expr: 'gpuagent_gpu_memory_used_ratio{gpu="0"} > 0.9'}
      - {alert: Bell, expr: 'gpuagent_gpu_memory_used_ratio{gpu="1"} > 0.9'}
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
    (folder / "rules.yaml").write_text(_RULES)
    chance, faults = random.Random(3), Faults(folder / "faults.json")
    with ExitStack() as stack, sink() as receiver:
        config = write_config(
            folder, free_port(), poll_interval="100ms", rule_files=[str(folder / "rules.yaml")],
            receivers=[{"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}],
            routes=[{"match": ['alertname=~"Steady|Bell"'], "receivers": ["hook"]}],
        )  # fmt: skip
        agents = stack.enter_context(zygote(config, folder / "scenario.yaml", folder / "log"))
        for _ in range(KILLS):
            live_and_die(agents, chance, faults, folder / "state" / "state.db")
        agents.start()  # this one may live
        with faults.holding({"kind": "full", "gpu": 1}):
            rings = told(receiver, "Bell").count("firing")
            until(lambda: told(receiver, "Bell")[-1:] == ["firing"], "the last ring is told")
        until(lambda: told(receiver, "Bell")[-1:] == ["resolved"], "and its end")

        bells = told(receiver, "Bell")
        assert len(bells) > KILLS / 10, "the lives were too short to tell of anything"
        assert bells == ["firing", "resolved"] * (len(bells) // 2)
        assert len(bells) // 2 >= rings
        assert told(receiver, "Steady") == ["firing"]
    assert "Traceback" not in (folder / "log").read_text()


def live_and_die(agents: Zygote, chance: random.Random, faults: Faults, state: Path) -> None:
    """A life of up to two seconds, most of them short; in half of them Bell rings. Then see what is left."""
    pid = agents.start()
    rings = chance.random() < 0.5
    with faults.holding(*([{"kind": "full", "gpu": 1}] if rings else [])):
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

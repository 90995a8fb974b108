"""Starting on a disk that is not as it should be: alerts go out all the same, and what is there is not destroyed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StateOwner
from tests.alerts.notify.receivers.sink import sink
from tests.alerts.store.damage import TABLES, columns, damage, filled
from tests.integration.agent import running_agent
from tests.integration.waiting import until
from tests.torture.receivers import told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_SCENARIO = "gpus: [{model: h100, memory: {total: 80GiB, base_used: 76GiB}}]\n"
_RULES = "groups: [{name: g, interval: 200ms, rules: [{alert: Steady, expr: 'gpuagent_gpu_memory_used_ratio > 0.9'}]}]"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)


def _keys(folder: Path, hook: dict[str, Any]) -> dict[str, Any]:
    return {"rule_files": [str(folder / "rules.yaml")], "receivers": [hook], "poll_interval": "200ms"}


def _state_file(folder: Path) -> Path:
    """One with something in it, as an agent leaves it."""
    (folder / "scenario.yaml").write_text(_SCENARIO)
    (folder / "rules.yaml").write_text(_RULES)
    path = folder / "state" / "state.db"
    store = Store(path, owner=StateOwner(simulated=True))
    for number in range(100):
        store.set_meta(f"key {number}", "x" * 500)
    store.close()
    return path


def _corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:12288] = os.urandom(8192)
    path.write_bytes(data)


def _no_database(path: Path) -> None:
    path.write_bytes(b"this is a text about something else\n" * 1000)


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _newer(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 4000")
    db.close()


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_link_elsewhere(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _log_of_garbage(path: Path) -> None:
    path.with_name("state.db-wal").write_bytes(os.urandom(50_000))


def _a_folder_for_a_log(path: Path) -> None:
    path.with_name("state.db-wal").mkdir()


def _another_layout(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE outbox")
        db.commit()


def _state_problems(status: dict[str, Any]) -> list[str]:
    return [each["text"] for each in status["problems"] if each["kind"] == "state"]


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [b"\x00\xff\xfe", "no JSON", -1e300], ids=["bytes", "text", "number"])
def test_a_bad_row_in_every_table(folder: Path, value: object) -> None:
    """ALERT-08: the agent starts over them, serves, tells of the alert, and says in every place what it set aside."""
    (folder / "scenario.yaml").write_text(_SCENARIO)
    (folder / "rules.yaml").write_text(_RULES)
    (folder / "state").mkdir(mode=0o700)
    path = filled(folder / "state", ManualClock())
    for table in TABLES:
        assert damage(path, table, columns(path, table)[-1], value)
    with sink() as receiver:
        hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
        with running_agent(folder, folder / "scenario.yaml", **_keys(folder, hook)) as agent:
            agent.wait_until_ready()
            until(lambda: told(receiver, "Steady") == ["firing"], "the alert is told")
            until(lambda: _state_problems(agent.status()), "the status tells")
            (problem,) = _state_problems(agent.status())
            metrics = agent.get("/metrics").text
            # A simulated node has no leak histories of the node before, and no receiver here keeps Slack's threads.
            for table in set(TABLES) - {"leak_histories", "leak_services", "slack_threads"}:
                assert f" of {table} (" in problem
                assert f'gpuagent_store_rows_set_aside_total{{table="{table}"}}' in metrics
            assert "gpuagent_store_healthy 1" in metrics
            assert agent.stop() == 0
            assert "Traceback" not in agent.log()
    with closing(sqlite3.connect(path)) as db:
        found = {name for (name,) in db.execute("SELECT DISTINCT table_name FROM set_aside")}
    assert found == set(TABLES) - {"leak_histories", "leak_services", "remedy_audit", "slack_threads"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("spoil", "kept", "healthy"),
    [
        (_corrupt, "state.db.corrupt-*Z", True),
        (_no_database, "state.db.corrupt-*Z", True),
        (_cut_short, "state.db.corrupt-*Z", True),
        (_log_of_garbage, "state.db.corrupt-*Z-wal", True),
        (_a_folder_for_a_log, "state.db.corrupt-*Z-wal", True),
        (_another_layout, "state.db.corrupt-*Z", True),
        (_newer, "state.db", False),
        (_a_folder, "state.db", False),
        (_a_fifo, "state.db", False),
        (_a_link_elsewhere, "elsewhere", False),
    ],
)
def test_a_state_file_that_cannot_be_used(
    folder: Path, spoil: Callable[[Path], None], kept: str, healthy: bool
) -> None:
    """ALERT-08: it is moved aside or left as it is, never overwritten; the log and a metric tell; alerts go out."""
    path = _state_file(folder)
    spoil(path)
    before = (path.parent / kept).read_bytes() if (path.parent / kept).is_file() and not healthy else b""
    with sink() as receiver:
        hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
        keys = _keys(folder, hook)
        with running_agent(folder, folder / "scenario.yaml", **keys) as agent:
            agent.wait_until_ready()
            until(lambda: told(receiver, "Steady") == ["firing"], "the alert is told")
            until(lambda: f"gpuagent_store_healthy {int(healthy)}" in agent.get("/metrics").text, "the metric tells")
            assert str(path) in agent.log()
            until(lambda: _state_problems(agent.status()), "the status tells")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log()
    assert any(path.parent.glob(kept))
    if before:
        assert (path.parent / kept).read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system of its own")
def test_a_disk_that_fills_up(folder: Path) -> None:
    """ALERT-08: a real file system without a byte left: the alert goes out, the fault is visible, and it heals."""
    state = folder / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", str(state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount anything")
    (folder / "scenario.yaml").write_text(_SCENARIO)
    (folder / "rules.yaml").write_text(_RULES)
    try:
        _fill(state / "filler")
        with sink() as receiver:
            hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
            keys = _keys(folder, hook)
            with running_agent(folder, folder / "scenario.yaml", **keys) as agent:
                agent.wait_until_ready()
                until(lambda: told(receiver, "Steady") == ["firing"], "the alert is told")
                until(lambda: "gpuagent_store_healthy 0" in agent.get("/metrics").text, "the metric tells")
                assert agent.stop() == 0
                assert "Traceback" not in agent.log()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def _fill(path: Path) -> None:
    """Until nothing more goes in."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue

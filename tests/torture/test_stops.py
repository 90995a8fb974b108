"""SIGTERM while something is going wrong: the agent is out in time, in order, whatever it is."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

import pytest

from tests.exhaustive import usually
from tests.integration.agent import STOP_SECONDS
from tests.torture.stage import BELL, stage
from tests.torture.test_matrix import KINDS, UNPAIRED, some
from tests.torture.trouble import Trouble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.needs("cc", "gcc")]

HANGS = Trouble("the disk hangs", lambda stage: stage.shim.turned("fsync_ms", 10_000), least_seconds=1.5)
TROUBLES = [trouble for trouble in KINDS if trouble.name not in UNPAIRED]


@pytest.mark.parametrize("trouble", usually([HANGS, *some(TROUBLES, 18)], HANGS), ids=lambda trouble: trouble.name)
def test_it_stops_in_time(library: Path, trouble: Trouble) -> None:
    """GPU-11: out within 5 s with status 0 while the trouble is on; what it leaves behind is in order."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        stage(Path(folder), library) as made,
    ):
        with trouble.on(made), made.faults.holding({"kind": "full", "gpu": BELL}):
            time.sleep(trouble.least_seconds)  # it has to have begun, and not every trouble shows
            assert made.agent.stop(STOP_SECONDS) == 0, made.agent.log()[-3000:]
        assert "Traceback" not in made.agent.log()
        assert not made.agent.control_socket.exists()
        assert [process.poll() for process in made.bystanders] == [None, None]
        db = sqlite3.connect(made.state_file)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()

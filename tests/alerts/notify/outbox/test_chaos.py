"""A sender that is killed at random points, against a receiver that fails at random."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.alerts.notify.outbox.chaos import GROUPS
from tests.alerts.notify.receivers.sink import Received, Reply, sink
from tests.torture import times

ROOT = Path(__file__).parents[4]
MESSAGES_PER_KILL = 15
FAULTS = (Reply(500), Reply(429, {"Retry-After": "0"}), Reply(drop="before"), Reply(drop="after"))


class Executioner:
    """Lets the sender work for a number of requests, then kills it: in the middle of a request, or a moment later."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.victim: subprocess.Popen[bytes] | None = None
        self.left = 0

    def behave(self, _: Received) -> Reply:
        """What the receiver does; it has processed the request by the time at which the sender dies."""
        self.left -= 1
        if self.left == 0 and self.victim is not None:
            if self.chance.random() < 0.5:
                self.victim.kill()
                return Reply()
            threading.Timer(self.chance.random() * 0.02, self.victim.kill).start()
        return self.chance.choice(FAULTS) if self.chance.random() < 0.2 else Reply()

    def run(self, command: list[str], requests: int) -> int:
        """Returns the exit status of the sender; 0 requests: let it live."""
        with subprocess.Popen(command, cwd=ROOT) as self.victim:
            self.left = requests
            return self.victim.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_at_random_it_loses_nothing(tmp_path: Path) -> None:
    """ALERT-08: everything arrives, in order per group, every duplicate under its id, and the file is whole."""
    kill_and_look(5, random.Random(5), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(times(1, 10)))
def test_so_it_is_after_twenty_kills(seed: int, tmp_path: Path) -> None:
    """ALERT-08: twenty kills in all tests, ten times as many under torture."""
    kill_and_look(20, random.Random(seed), tmp_path)


def kill_and_look(kills: int, chance: random.Random, folder: Path) -> None:
    """Kill the sender again and again, let the last one live, and see what has become of the messages."""
    executioner = Executioner(chance)
    path, last, killed = folder / "alerts.db", 0, 0
    with sink(executioner.behave) as receiver:
        command = [sys.executable, "-m", "tests.alerts.notify.outbox.chaos", str(path), receiver.url]
        for _ in range(kills):
            last += MESSAGES_PER_KILL
            status = executioner.run([*command, str(last)], chance.randint(1, MESSAGES_PER_KILL - 2))
            killed += status == -signal.SIGKILL
        assert executioner.run([*command, str(last)], 0) == 0
        ids = [request.headers["webhook-id"] for request in receiver.processed]

    assert killed >= kills - 1
    first = list(dict.fromkeys(ids))
    assert len(ids) > len(first), "no message came twice: the kills were all too early or too late"
    assert sorted(first) == [f"m{number:04}" for number in range(last)]
    for group in range(GROUPS):
        numbers = [int(name[1:]) for name in first if int(name[1:]) % GROUPS == group]
        assert numbers == sorted(numbers)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("SELECT DISTINCT state FROM outbox").fetchall() == [("sent",)]
    db.close()

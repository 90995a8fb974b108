"""Tasks of asyncio, which asyncio alone may know: counted by the coroutine that they run, on every Python."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.client.blame.kinds import HERE
from tests.client.conftest import Apps
from tests.client.test_old_pythons import interpreter


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_tasks_are_counted_by_what_they_run(version: str, apps: Apps) -> None:
    """The app asks how many there are; a task that is done is none, and where no loop runs there are none."""
    run = subprocess.run(
        [interpreter(version), HERE / "tasks.py"], env=apps.environment(), capture_output=True, text=True, check=True
    )

    assert json.loads(run.stdout) == {"at first": [3, 3], "more": [5], "done": [0], "of another": True}

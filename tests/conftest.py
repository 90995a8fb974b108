"""Which tests this machine can run, the reason for each that it cannot, and what all of them leave behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.attack.table import pytest_terminal_summary as pytest_terminal_summary  # noqa: PLC0414  for pytest
from tests.torture import times

# How long one example takes is the machine's affair. Each run has other ones: what one does not find, another does.
settings.register_profile("gpuagent", deadline=None, max_examples=times(40, 1000))
settings.load_profile("gpuagent")

INSTALL = {
    "alertmanager": "apt-get install --no-install-recommends prometheus-alertmanager",
    "amtool": "apt-get install --no-install-recommends prometheus-alertmanager",
    "chromium": "apt-get install --no-install-recommends chromium (on Ubuntu that is a snap, which will not do)",
    "lexgrog": "apt-get install man-db",
    "man": "apt-get install man-db",
    "prometheus": "apt-get install --no-install-recommends prometheus",
    "promtool": "apt-get install --no-install-recommends prometheus",
    "systemd-analyze": "apt-get install systemd",
    "systemd-nspawn": "apt-get install systemd-container",
}


@pytest.hookimpl(optionalhook=True)  # also without pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores (`-n auto`): many tests wait for real processes most of the time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU or a program that is not here; in CI a missing program is a failure.

    A test that is quietly skipped everywhere tests nothing, so CI has to have all but the GPU.
    """
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU with its driver here: there is no /dev/nvidiactl")
    for marker in item.iter_markers("needs"):
        program, *other_names = marker.args
        if not any(_is_there(name) for name in (program, *other_names)):
            reason = f"no {program} on the PATH; {INSTALL.get(program, 'install it')}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)


def _is_there(name: str) -> bool:
    """A snap's program is a link to `snap`, which refuses a home and files other than its own: not the real thing."""
    found = shutil.which(name)
    return found is not None and Path(found).resolve().name != "snap"


@pytest.fixture(autouse=True)
def databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close each database that a test has opened, as the agent does when it ends.

    From Python 3.13 on an open connection warns when it is collected (https://docs.python.org/3/whatsnew/3.13.html),
    which is at any time: another test would fail of it.
    """
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connecting(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connecting)
    yield
    for db in opened:
        db.close()

"""Which tests this machine can run, the reason for each that it cannot, and what all of them leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.attack.table import pytest_terminal_summary as pytest_terminal_summary  # noqa: PLC0414  for pytest
from tests.exhaustive import ONE_CASE_IN, extend, is_sampled
from tests.gpu.presence import missing_gpu
from tests.torture import times

# How long it takes to make or run one example depends on what else the machine does. Outside CI each run has other
# examples: what one does not find, another does.
settings.register_profile(
    "gpuagent", deadline=None, max_examples=times(40, 1000), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpuagent")

EXIT_STATUS = "gpuagent/exit_status"
"""Key in pytest's cache of the last run's exit status: `make` passes on only that something failed."""

_USUAL_SECONDS = 10
"""What a slow test counts for that has not asked for more time than others: most of those only compute."""
MACHINE = "tests/systemd/"
"""Folder of the tests that look at one booted machine: making it takes as long as they do."""
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
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice as many as there are cores (`-n auto`): many slow tests wait for real processes most of the time."""
    cores = len(os.sched_getaffinity(0))
    return cores if "not slow" in config.option.markexpr else 2 * cores


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together what shares a booted machine and the wheels that were built for it, else each file's tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return MACHINE if file.startswith(MACHINE) else file

    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that takes a sample of the exhaustive tests."""
    parser.addoption(
        "--sample",
        metavar="COMMIT",
        help="run extended tests, too; of further cases and exhaustive ones a sample, another for each commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted, whatever this process was told to ignore.

    `nohup make test &` starts it with SIGINT and SIGHUP ignored, which children inherit. A handler ends with exec:
    they get the default back, and this process goes on ignoring the signal.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark and deselect what `--sample` does not take, and put files that may take long first with several workers.

    Else one worker begins with the longest file when the others have nothing left to do.
    """
    extend(items)
    yield  # others deselect
    commit = config.getoption("sample")
    if commit is not None:
        taken = [item for item in items if _is_taken(item, commit)]
        config.hook.pytest_deselected(items=[item for item in items if item not in taken])
        items[:] = taken
    if hasattr(config, "workerinput"):  # in a worker of pytest-xdist
        seconds: Counter[Path] = Counter()
        for item in items:
            if item.get_closest_marker("slow"):
                own = item.get_closest_marker("timeout")
                seconds[item.path] += own.args[0] if own else _USUAL_SECONDS
        items.sort(key=lambda item: -seconds[item.path])


def _is_taken(item: pytest.Item, commit: str) -> bool:
    marker = item.get_closest_marker("exhaustive")
    if marker is None:
        extended = item.get_closest_marker("extended")
        is_case = extended is not None and extended.kwargs.get("case", False)
        return not is_case or is_sampled(item.nodeid, commit, ONE_CASE_IN)
    whole = marker.kwargs.get("whole_file", False)
    return is_sampled(item.nodeid.partition("::")[0] if whole else item.nodeid, commit)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the exit status, so that "some tests failed" is told from "not all tests were run"."""
    if session.config.pluginmanager.has_plugin("cacheprovider") and not hasattr(session.config, "workerinput"):
        assert session.config.cache
        session.config.cache.set(EXIT_STATUS, int(exitstatus))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU or a program that is not here; in CI a missing program is a failure.

    A test that is quietly skipped everywhere tests nothing, so CI has to have all but the GPU.
    """
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(f"no NVIDIA GPU with its driver here: {reason}")
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


class UnsyncedConnection(sqlite3.Connection):
    """Leaves it to the kernel when a file is written to the disk: no test cuts the power."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        found = super().execute(sql, *parameters)
        if sql.startswith("PRAGMA synchronous ="):
            super().execute("PRAGMA synchronous = OFF")
        return found


@pytest.fixture(autouse=True)
def databases_are_closed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close each database that a test has opened, as the agent does when it ends. None is synced unless `synced`.

    From Python 3.13 on an open connection warns when it is collected (https://docs.python.org/3/whatsnew/3.13.html),
    which is at any time: another test would fail of it.
    """
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    factory = sqlite3.Connection if request.node.get_closest_marker("synced") else UnsyncedConnection

    def connecting(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **{"factory": factory, **options}))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connecting)
    yield
    for db in opened:
        db.close()

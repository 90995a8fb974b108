"""What is asked of systemctl, with a program in its place that answers as systemd 252 does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuagent.acting.units import Systemctl

NOW = 1_000_000.0
LOADED = "LoadState=loaded\nRefuseManualStart=no\nRefuseManualStop=no\n"


def systemctl(folder: Path, show: str, restart: str = "exit 0") -> Systemctl:
    """Prints `show` when asked, and does `restart`; what it was asked for is in the file `asked`."""
    program = folder / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\ncase "$1" in show) cat <<EOF\n{show}\nEOF\n;; *) {restart};; esac\n'
    )
    return Systemctl(("sh", str(program)), monotonic=lambda: NOW)


def limits(started_ago: float, restarts: int, burst: int = 5, interval: str = "10s") -> str:
    """A unit that was started so many seconds ago."""
    started = (NOW - started_ago) * 1e6
    return (
        f"{LOADED}StartLimitIntervalUSec={interval}\nStartLimitBurst={burst}\nNRestarts={restarts}\n"
        f"ActiveEnterTimestampMonotonic={started:.0f}"
    )


@pytest.mark.parametrize(
    ("show", "word"),
    [
        ("LoadState=not-found", "no unit"),
        ("LoadState=loaded\nRefuseManualStop=yes", "refuses"),
        (limits(5, 3), "start limit"),
        (limits(50, 4, interval="1min 30s"), "start limit"),
        (limits(50, 1, burst=2, interval="infinity"), "start limit"),
    ],
)
def test_left_alone(tmp_path: Path, show: str, word: str) -> None:
    """A unit that is not there, that refuses, or that one more start could leave failed."""
    assert word in asyncio.run(systemctl(tmp_path, show).refusal("whisper.service"))


@pytest.mark.parametrize(
    "show", [limits(5, 2), limits(11, 4), limits(5, 100, burst=0), limits(2, 0), limits(86_400, 4, interval="1h")]
)
def test_may_be_restarted(tmp_path: Path, show: str) -> None:
    """Starts that are longer ago than the interval do not count, nor does a limit that is off."""
    assert asyncio.run(systemctl(tmp_path, show).refusal("whisper.service")) == ""


@pytest.mark.parametrize("unit", ["", "--root=/x.service", "a b.service", "x.socket", "../x.service", "x.service\n"])
def test_names_that_are_none(tmp_path: Path, unit: str) -> None:
    """What is no name of a service never becomes an argument."""
    unasked = systemctl(tmp_path, LOADED)
    assert "name of a service" in asyncio.run(unasked.refusal(unit))
    assert not asyncio.run(unasked.restart(unit, 1.0)).ok
    assert not (tmp_path / "asked").exists()


def test_restart(tmp_path: Path) -> None:
    """It asks for exactly this unit, and never for a password."""
    assert asyncio.run(systemctl(tmp_path, LOADED).restart("whisper.service", 5.0)).ok
    assert (tmp_path / "asked").read_text() == "--no-ask-password restart -- whisper.service\n"


def test_own_restarts_count(tmp_path: Path) -> None:
    """Those are not in systemd's own count, and use up the unit's limit as well."""
    own = systemctl(tmp_path, limits(5, 0, burst=3))
    assert asyncio.run(own.refusal("whisper.service")) == ""
    asyncio.run(own.restart("whisper.service", 5.0))
    assert "start limit" in asyncio.run(own.refusal("whisper.service"))
    assert asyncio.run(own.refusal("other.service")) == ""


def test_restart_is_denied(tmp_path: Path) -> None:
    """Polkit says no: told as a missing right."""
    denied = systemctl(tmp_path, LOADED, "echo 'Access denied' >&2; exit 4")
    done = asyncio.run(denied.restart("whisper.service", 5.0))
    assert (done.ok, done.errno) == (False, 1)
    assert "Access denied" in done.detail


def test_restart_hangs(tmp_path: Path) -> None:
    """A job that takes longer than its time is not waited for."""
    done = asyncio.run(systemctl(tmp_path, LOADED, "exec sleep 1000").restart("whisper.service", 0.2))
    assert not done.ok
    assert "longer" in done.detail


def test_no_systemd(tmp_path: Path) -> None:
    """Without systemctl nothing is restarted, and it is said why."""
    assert "cannot be asked" in asyncio.run(Systemctl((str(tmp_path / "none"),)).refusal("whisper.service"))

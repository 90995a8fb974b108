"""Where the driver may swap GPU memory to the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.models import Config
from gpuagent.config.remedies import KillStep, Ladder, Remedies, Step
from gpuagent.core.api_client import Listener
from gpuagent.core.matchers import parse_matcher
from gpuagent.doctor import service
from gpuagent.doctor.finding import Level
from gpuagent.doctor.machine import managed_memory, wsl

GIB = 2**30


@pytest.mark.parametrize(
    ("version", "dxg", "found"),
    [
        ("Linux version 5.15.153.1-microsoft-standard-WSL2", False, 1),
        ("Linux version 6.8.0-custom", True, 1),
        ("Linux version 6.8.0-45-generic (buildd@lcy02)", False, 0),
        (None, False, 0),
    ],
)
def test_wsl_is_known_by_its_kernel_or_its_device(tmp_path: Path, version: str | None, dxg: bool, found: int) -> None:
    """A warning there, nothing on a plain Linux or where /proc does not tell."""
    if version is not None:
        (tmp_path / "version").write_text(version)
    if dxg:
        (tmp_path / "dxg").touch()

    assert [finding.level for finding in wsl(tmp_path, tmp_path)] == [Level.WARNING] * found


def test_managed_memory_is_seen_by_what_is_reserved() -> None:
    """Only where the programs of a GPU have reserved more than it holds; what no client tells is not counted."""
    status = {
        "gpus": [{"index": 0, "memory_total_bytes": 10 * GIB}, {"index": 1, "memory_total_bytes": 10 * GIB}, {}],
        "processes": [
            {"gpu": 0, "reserved_bytes": 6 * GIB}, {"gpu": 0, "reserved_bytes": 6 * GIB},
            {"gpu": 1, "reserved_bytes": 10 * GIB}, {"gpu": 1, "reserved_bytes": None}, {"gpu": 1},
        ],
    }  # fmt: skip
    (finding,) = managed_memory(status)

    assert finding.level is Level.WARNING
    assert finding.text.startswith("GPU 0: programs have reserved 12.0 GiB of 10.0 GiB")
    assert list(managed_memory({})) == []


@pytest.mark.parametrize(
    ("kind", "locked", "ladders", "levels"),
    [
        ("unified", 64, True, [Level.OK]),
        ("unified", 0, True, [Level.WARNING]),
        ("unified", 0, False, []),
        ("dedicated", 0, True, []),
    ],
)
def test_locked_pages_are_told_where_they_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, locked: int, ladders: bool, levels: list[Level]
) -> None:
    """Of an agent with ladders on a machine whose GPU shares its memory, and of no other."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text(f"Name:\tgpuagent\nVmLck:\t   {locked} kB\n")
    monkeypatch.setattr(service, "listener", lambda _: Listener(7, 0))
    ladder = Ladder(match=(parse_matcher('alertname="GpuMemoryStallImminent"'),), steps=(Step(kill=KillStep()),))
    config = Config(remedies=Remedies(ladders=(ladder,) if ladders else ()))
    found = list(service._locked_pages(config, {"gpus": [{"memory_kind": kind}]}, tmp_path))

    assert [each.level for each in found] == levels

"""`gpuagent usage` as it is typed: with an agent, without one, and with neither."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from gpuagent.cli.app import app
from gpuagent.cli.cells import Paint
from gpuagent.cli.usage import lines_of
from gpuagent.core.usage import NOBODY, UNKNOWN, Amounts, Holder
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.usage import UsageDays, UsageRow
from gpuagent_alerts.usage.accounting import since_day
from gpuagent_alerts.usage.summary import GroupBy, Price, usage_document
from tests.fakes.answering import answering, says
from tests.fakes.golden import assert_golden

HOUR = 3600.0
GIB_HOUR = 2**30 * HOUR
ROWS = (
    UsageRow("2026-11-22", 0, "a", Holder(user="alice", job="48213"),
             Amounts(612.4 * HOUR, 600 * HOUR, 551 * HOUR, 3.1 * HOUR, 46210 * GIB_HOUR, 900 * GIB_HOUR, 1.4e9)),
    UsageRow("2026-11-22", 1, "b", Holder(user="bob\x1b[31m", unit="jupyter.service"),
             Amounts(301.7 * HOUR, 300 * HOUR, 9.4 * HOUR, 262.1 * HOUR, 3320 * GIB_HOUR, None, 2.2e8)),
    UsageRow("2026-11-22", 1, "b", NOBODY, Amounts(420 * HOUR, 0, 0, 0, 44002 * GIB_HOUR, None, 1.3e8)),
    UsageRow("2026-11-22", 1, "b", UNKNOWN, Amounts(0.2 * HOUR, 0, 0.1 * HOUR, 0, 10 * GIB_HOUR)),
)  # fmt: skip


def document(by: GroupBy = GroupBy.USER, price: Price | None = None, simulated: str = "") -> dict[str, Any]:
    """Return what an agent answers."""
    return usage_document(ROWS, by, "2026-11-16", 0.0, price, node="node7", simulated=simulated)


def screen(width: int, **more: Any) -> str:
    """Return the lines of a screen."""
    lines = lines_of(document(**more), width, Paint())
    assert all(cell_len(line) <= width for line in lines)
    return "\n".join(line.rstrip() for line in lines)


def test_the_screen() -> None:
    """Who held most first, what is no holder last, and the sum; narrow ones leave columns out, the essence stays."""
    wide = screen(120, price=Price(2.5, "EUR"))
    narrow = screen(60, by=GroupBy.UNIT, simulated="healthy")

    assert_golden("usage.txt", f"{wide}\n\n{narrow}\n")


def test_without_rows() -> None:
    """An agent that has just begun says so."""
    nothing = usage_document((), GroupBy.USER, "2026-11-16", 0.0)

    assert lines_of(nothing, 80, Paint()) == ["Nothing was recorded since 2026-11-16."]


def test_an_agent_is_asked() -> None:
    """The grouping and the period go to the agent; `--json` is its document."""
    requests: list[bytes] = []
    with answering(says(document(GroupBy.JOB), "200 OK", requests)) as place:
        result = CliRunner().invoke(app, ["usage", "--by", "job", "--since", "30d", "--json", "--socket", str(place)])

    assert (result.exit_code, json.loads(result.stdout)) == (0, document(GroupBy.JOB))
    assert requests[0].startswith(b"GET /api/v1/usage?by=job&since=30d ")


def config(folder: Path) -> Path:
    """Return a configuration whose state is in a folder."""
    path = folder / "gpuagent.yaml"
    path.write_text(f"state_dir: {folder}/state\nusage: {{price_per_gpu_hour: 2}}\n", encoding="utf-8")
    return path


def test_without_an_agent_the_table_is_read(tmp_path: Path) -> None:
    """From the state file, which stays as it is, and with the price of the configuration."""
    (tmp_path / "state").mkdir(mode=0o700)
    store = Store(tmp_path / "state" / "state.db")

    UsageDays(store).add(since_day(time.time(), 0.0), "", [(0, "a", Holder(user="alice"), Amounts(7200.0))])
    store.close()
    before = (tmp_path / "state" / "state.db").read_bytes()

    result = CliRunner().invoke(app, ["usage", "--json", "--config", str(config(tmp_path))])

    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [(row["name"], row["held_seconds"], row["cost"]) for row in found["usage"]] == [("alice", 7200.0, 4.0)]
    assert "showing the table" in result.stderr
    assert (tmp_path / "state" / "state.db").read_bytes() == before


def test_neither_an_agent_nor_a_table(tmp_path: Path) -> None:
    """Status 1, and why."""
    result = CliRunner().invoke(app, ["usage", "--config", str(config(tmp_path))])

    assert result.exit_code == 1
    assert "Cannot read the daily table" in result.stderr


@pytest.mark.parametrize("since", ["soon", "0s", "500d"])
def test_periods_that_are_none(since: str) -> None:
    """A period that no table can have is an error of usage."""
    assert CliRunner().invoke(app, ["usage", "--since", since]).exit_code == 2

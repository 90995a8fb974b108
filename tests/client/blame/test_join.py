"""Holder and allocating line, joined: real tensors, and a recorder that stands in for the CUDA allocator's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.blame.kinds import HERE, ask, marked_lines
from tests.client.conftest import Apps

ALLOCATING = HERE / "allocating.py"
LINES = marked_lines(ALLOCATING, "# LINE ")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_both_lines_are_named(apps: Apps, apps_python: Path) -> None:
    """One look, two lines: who keeps it, and who made it; the addresses that joined them stay in the app."""
    answer = ask(apps, apps_python, ALLOCATING)

    (group,) = answer["groups"]
    assert (group["container"], group["line"]) == ("__main__.results", LINES["kept"])
    assert (group["allocated_file"], group["allocated_line"]) == ("allocating.py", LINES["allocated"])
    assert group["allocated_function"] == "embed"
    assert 0 < group["allocated_bytes"] <= group["growth_bytes"]
    assert f"allocated at allocating.py:{LINES['allocated']} in `embed`" in answer["verdict"]
    assert "addresses" not in group
    (line, *_) = answer["lines"]
    assert (line["line"], line["function"]) == (LINES["allocated"], "embed")
    assert answer["joined"] is True
    assert answer["calls"] == ["state", "snapshot", "snapshot", None]


def test_an_app_that_records_for_itself_is_left_alone(apps: Apps, apps_python: Path) -> None:
    """The census goes on without the lines, and says why they are missing."""
    answer = ask(apps, apps_python, ALLOCATING, "recording")

    (group,) = answer["groups"]
    assert group["line"] == LINES["kept"]
    assert "allocated_line" not in group
    assert answer["lines"] == []
    assert "lines: the app records its memory history itself" in answer["notes"]
    assert answer["calls"] == []

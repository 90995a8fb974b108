"""The shipped Grafana board: made by its generator, about metrics that exist, and never calm without data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuagent.catalogue import FAMILIES

FOLDER = Path(__file__).parents[2] / "grafana"
BOARD = FOLDER / "dashboards" / "gpu-node.json"


def board() -> Any:
    """The board as it is shipped."""
    return json.loads(BOARD.read_text(encoding="utf-8"))


def data_panels() -> list[Any]:
    """All panels that show data, each under its title."""
    return [pytest.param(panel, id=panel["title"]) for panel in board()["panels"] if panel["type"] != "row"]


def test_the_board_is_what_the_generator_writes() -> None:
    """Nobody edits the JSON by hand: the next run would lose it."""
    made = subprocess.run(
        [sys.executable, str(FOLDER / "node.py")], capture_output=True, text=True, timeout=30, check=True
    )

    assert made.stdout == BOARD.read_text(encoding="utf-8")


def test_every_metric_is_in_the_catalogue() -> None:
    """EXP-09: a metric that is renamed takes its panels along."""
    known = {family.name for family in FAMILIES}
    asked = set(
        re.findall(r"\bgpuagent_\w+", " ".join(re.findall(r'"(?:expr|definition)": "(.*)"', BOARD.read_text())))
    )

    assert "gpuagent_gpu_memory_used_bytes" in asked
    assert asked - known == set()


@pytest.mark.parametrize("panel", data_panels())
def test_a_panel_explains_itself_and_does_not_look_calm_when_empty(panel: Any) -> None:
    """A description for the newcomer, and words instead of a blank where nothing is collected."""
    defaults = panel["fieldConfig"]["defaults"]

    assert len(panel["description"]) > 20
    assert re.search(r"\b(no|unknown)\b", defaults["noValue"], re.IGNORECASE)
    assert defaults["thresholds"]["steps"]
    assert "unit" in defaults or "mappings" in defaults or panel["type"] == "table"


def test_a_number_that_is_missing_is_not_green() -> None:
    """Grafana paints what is missing in the lowest threshold's colour: with a dead agent nothing may look well."""
    lowest = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["color"]
        for panel in board()["panels"]
        if panel["type"] == "stat"
    }

    assert len(lowest) == 8
    assert set(lowest.values()) == {"purple"}


@pytest.mark.parametrize("panel", data_panels())
def test_a_panel_follows_the_choices_at_the_top(panel: Any) -> None:
    """Every query goes to the chosen data source, job and instance."""
    for target in panel["targets"]:
        selectors = re.findall(r"\b(?:gpuagent_\w+|up)(\{[^}]*\})?", target["expr"])

        assert target["datasource"]["uid"] == "${datasource}"
        assert selectors
        assert all('job=~"$job", instance=~"$instance"' in selector for selector in selectors)


def test_panels_can_be_linked_to_and_do_not_overlap() -> None:
    """Each has an id of its own, and a place of its own in 24 columns."""
    panels = board()["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_board_can_be_provisioned() -> None:
    """No inputs to be asked for, an address that stays, and no id of some other Grafana."""
    made = board()

    assert made["uid"] == "gpuagent-node"
    assert made["id"] is None
    assert not made.keys() & {"__inputs", "__requires"}
    assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", "job", "instance", "gpu"]

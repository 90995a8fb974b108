"""The shipped Grafana boards: made by their generator, about metrics that exist, and never calm without data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.optional import SWITCH_OF
from gpuagent_alerts.shipped import RULES_FILE
from tests.grafana.boards import DASHBOARDS, FOLDER, NAMES, board, expressions, panels, queries

BASE_UNITS = {"_bytes": {"bytes"}, "_ratio": {"percentunit"}, "_celsius": {"celsius"}, "_watts": {"watt"},
              "_hertz": {"hertz"}, "_bytes_per_second": {"binBps"}, "_seconds": {"s"}}  # fmt: skip
ALL_PANELS = [pytest.param(panel, id=f"{name}: {panel['title']}") for name in NAMES for panel in panels(name)]
every_board = pytest.mark.parametrize("name", NAMES)


def test_the_boards_are_what_the_generator_writes(tmp_path: Path) -> None:
    """Nobody edits the JSON by hand: the next run would lose it."""
    subprocess.run([sys.executable, str(FOLDER / "boards.py"), str(tmp_path)], timeout=60, check=True)

    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.iterdir()}
    assert made.keys() == {f"{name}.json" for name in NAMES}


@every_board
def test_every_metric_is_in_the_catalogue_or_recorded(name: str) -> None:
    """EXP-09: a metric that is renamed takes its panels along."""
    rules = yaml.safe_load((FOLDER / "prometheus" / "gpuagent.recording.yaml").read_text(encoding="utf-8"))
    known = {family.name for family in FAMILIES}
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}

    asked = set(re.findall(r"[a-z_:]*\bgpuagent_\w+(?::\w+)?", " ".join(expressions(name))))
    assert "gpuagent_build_info" in asked
    assert asked - known - recorded == set()


def asked_for(texts: Iterable[str]) -> set[str]:
    """Names of the families in these expressions."""
    return set(re.findall(r"\bgpuagent_\w+", " ".join(texts)))


def test_every_family_is_on_a_board_or_off_by_default() -> None:
    """EXP-09: nothing is exported that nobody can look at, and nothing that is looked at is off."""
    families = {family.name for family in FAMILIES}
    asked = [expr for name in NAMES for expr in expressions(name)]
    recording = (FOLDER / "prometheus" / "gpuagent.recording.yaml").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(recording)["groups"] for rule in group["rules"]]
    behind = [rule["expr"] for rule in rules if any(rule["record"] in expr for expr in asked)]
    on_boards = asked_for([*asked, *behind]) & families

    assert families - on_boards == SWITCH_OF.keys()
    assert asked_for([recording, RULES_FILE.read_text(encoding="utf-8")]) & SWITCH_OF.keys() == set()


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_explains_itself_and_does_not_look_calm_when_empty(panel: Any) -> None:
    """A description for the newcomer, and words instead of a blank where nothing is collected."""
    defaults = panel["fieldConfig"]["defaults"]

    assert len(panel["description"]) > 20
    assert panel["description"].endswith(".")
    assert re.search(r"\b(no|nothing|unknown)\b", defaults["noValue"], re.IGNORECASE)
    assert defaults["thresholds"]["steps"]
    assert defaults["unit"]


@every_board
def test_a_number_that_is_missing_is_not_green(name: str) -> None:
    """Grafana paints what is missing in the lowest threshold's color: with a dead agent nothing may look well."""
    lowest = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["color"]
        for panel in panels(name)
        if panel["type"] == "stat"
    }

    assert len(lowest) >= (6 if name == "gpu-efficiency" else 8)
    assert set(lowest.values()) == {"purple"}


def base_units(expr: str) -> set[str] | None:
    """The units that fit a query's values; None where it computes something else than its metrics are."""
    if ":rate" in expr:  # of a counter: its unit is no longer that in its name
        return None
    if re.search(r"/|count\(|bool|time\(|(1000|3600|0) \*|\} [<>]", expr):
        return None
    suffixes = {
        next((end for end in reversed(BASE_UNITS) if metric.endswith(end)), "")
        for metric in re.findall(r"\bgpuagent_\w+", expr)
    }
    return BASE_UNITS.get(suffixes.pop()) if len(suffixes) == 1 else None


@every_board
def test_units_are_the_metrics_own(name: str) -> None:
    """A panel about bytes is in bytes, and not in what looks like them."""
    shown = [
        (panel["title"], panel["fieldConfig"]["defaults"]["unit"], base_units(target["expr"]))
        for panel in panels(name)
        for target in panel["targets"]
        if panel["type"] != "table"
    ]

    assert len([title for title, _, units in shown if units]) >= {"gpu-agent": 4, "gpu-efficiency": 1}.get(name, 8)
    assert [(title, unit) for title, unit, units in shown if units and unit not in units] == []


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_follows_the_choices_at_the_top(panel: Any) -> None:
    """Every query goes to the chosen data source, job and instance."""
    for target in panel["targets"]:
        selectors = re.findall(r"\b(?:[a-z_]+:)?(?:gpuagent_[\w:]+|up|ALERTS)(\{[^}]*\})", target["expr"])

        assert target["datasource"]["uid"] == "${datasource}"
        assert selectors
        # The shipped Watchdog is of no node: it tells that rules are evaluated at all.
        nodes = [each for each in selectors if each != '{alertname="Watchdog"}']
        assert all('job=~"$job", instance=~"$instance"' in selector for selector in nodes)


@every_board
def test_panels_can_be_linked_to_and_do_not_overlap(name: str) -> None:
    """Each has an id of its own, and a place of its own in 24 columns."""
    everything = board(name)["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in everything)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


@every_board
def test_a_board_can_be_provisioned(name: str) -> None:
    """No inputs to be asked for, an address that stays, and no id of some other Grafana."""
    made = board(name)

    assert made["uid"] == name.replace("gpu-", "gpuagent-")
    assert made.get("id") is None
    assert made["editable"] is False
    assert not made.keys() & {"__inputs", "__requires"}
    assert [each["name"] for each in made["templating"]["list"]][:4] == ["datasource", "job", "instance", "gpu"]


def links(made: Any) -> list[str]:
    """Addresses in the cells of all tables of a board."""
    return [
        link["url"]
        for panel in made["panels"]
        for override in panel.get("fieldConfig", {}).get("overrides", [])
        for setting in override["properties"]
        if setting["id"] == "links"
        for link in setting["value"]
    ]


@every_board
def test_links_lead_to_boards_and_set_variables_that_they_have(name: str) -> None:
    """Whoever clicks a node or a pid comes to its board, and to nothing else."""
    variables = {
        made["uid"]: {each["name"] for each in made["templating"]["list"]} for made in (board(each) for each in NAMES)
    }
    found = links(board(name))

    assert found
    for url in found:
        path, _, query = url.partition("?")
        chosen = {key.removeprefix("var-") for key in parse_qs(query) if key.startswith("var-")}
        assert "${datasource:queryparam}&${job:queryparam}&${__url_time_range}" in query
        assert chosen <= variables[path.split("/")[2]]
        assert "instance" in chosen
    assert board(name)["links"][0]["tags"] == ["gpuagent"]
    assert "gpuagent" in board(name)["tags"]


@every_board
def test_fields_named_in_links_and_overrides_are_columns(name: str) -> None:
    """A column that is renamed takes its width, its unit and its link along."""
    for panel in panels(name):
        if panel["type"] != "table":
            continue
        organize = next(each for each in panel["transformations"] if each["id"] == "organize")["options"]
        columns = set(organize["renameByName"].values())
        by_name = {
            each["matcher"]["options"]
            for each in panel["fieldConfig"]["overrides"]
            if each["matcher"]["id"] == "byName"
        }
        fields = set(re.findall(r"__data\.fields\.(\w+)", str(panel["fieldConfig"])))
        assert by_name | fields <= columns
        assert panel["options"]["sortBy"][0]["displayName"] in columns
        assert set(organize["indexByName"]) == set(organize["renameByName"])


@every_board
def test_remedies_are_marked_in_time(name: str) -> None:
    """What was done is seen where the memory came back; the value is the time, in milliseconds."""
    notes = board(name)["annotations"]["list"]

    assert [note["name"] for note in notes] == ["Remedies", "Remedies (dry run)", "Announced"]
    for note in notes:
        assert note["useValueForTime"] is True
        assert re.fullmatch(r"1000 \* gpuagent_remedy_\w+_timestamp_seconds\{.*\}", note["expr"])
        assert 'job=~"$job", instance=~"$instance"' in note["expr"]


def test_every_query_has_a_name_for_its_series() -> None:
    """A legend made by Grafana is the whole selector."""
    unnamed = [query for name in NAMES for query in queries(name) if query.legend == "__auto" and not query.instant]
    assert unnamed == []


def test_the_provisioning_files_find_the_boards() -> None:
    """Both are version 1 of Grafana's format, and name no board twice."""
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    boards = yaml.safe_load((FOLDER / "provisioning/dashboards/gpuagent.yml").read_text(encoding="utf-8"))

    assert sources["apiVersion"] == boards["apiVersion"] == 1
    assert sources["datasources"][0]["type"] == "prometheus"
    assert boards["providers"][0]["options"]["path"].endswith("/gpuagent")
    assert len({board(name)["uid"] for name in NAMES}) == len(NAMES)

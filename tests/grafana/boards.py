"""The shipped boards as data: their panels, their queries, and what a choice of variables makes of these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "grafana"
DASHBOARDS = FOLDER / "dashboards"
NAMES = ("gpu-fleet", "gpu-node", "gpu-efficiency", "gpu-process", "gpu-details", "gpu-agent")


class Query(NamedTuple):
    """One target of a panel."""

    board: str
    panel: str
    ref_id: str
    expr: str
    legend: str
    instant: bool


def board(name: str) -> Any:
    """As it is shipped."""
    return json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))


def panels(name: str) -> list[Any]:
    """Those that show data, also of rows that are closed."""
    found: list[Any] = []
    for panel in board(name)["panels"]:
        found += panel["panels"] if panel["type"] == "row" else [panel]
    return found


def queries(name: str) -> Iterator[Query]:
    """Of all panels."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield Query(
                name, panel["title"], target["refId"], target["expr"], target["legendFormat"],
                target.get("instant", False),
            )  # fmt: skip


def expressions(name: str) -> list[str]:
    """All PromQL of a board: of panels, variables and annotations."""
    made = board(name)
    variables = [each["definition"] for each in made["templating"]["list"] if each["type"] == "query"]
    return [query.expr for query in queries(name)] + variables + [note["expr"] for note in made["annotations"]["list"]]


def filled_in(expr: str, variables: Mapping[str, str]) -> str:
    """The expression with its variables replaced, as Grafana does it for a range of a minute. `$1` is none."""
    values = {"__rate_interval": "10s", "__range": "1m", **variables}
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda found: values[found[1]], expr)


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """The name of a series as Grafana writes it."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), pattern)

"""Tables: the columns in their order under names for people, and cells that lead to the board of what they name."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import prometheus, table
from grafana_foundation_sdk.models import common, dashboard
from panels import GREEN, settings, steps, with_common

CHOSEN = "${datasource:queryparam}&${job:queryparam}&${__url_time_range}"
"""A link keeps what is chosen at the top, and the time range."""
MISSING = [dashboard.ValueMap({"-1": dashboard.ValueMappingResult(text="n/a", index=0)})]
"""A column that no row has would vanish, so queries for tables tell -1 for what is unknown."""


def board_link(title: str, uid: str, **fields: str) -> list[dict[str, str]]:
    """To a board, with variables set from fields of the row: `instance="Node"`."""
    chosen = "".join(f"&var-{name}=${{__data.fields.{field}:percentencode}}" for name, field in fields.items())
    return [{"title": title, "url": f"/d/{uid}/{uid}?{CHOSEN}{chosen}"}]


TO_NODE = board_link("This node", "gpuagent-node", instance="Node")
TO_PROCESS = board_link("This process", "gpuagent-process", instance="Node", gpu="GPU", pid="PID")


def listing(
    title: str,
    text: str,
    columns: dict[str, str],
    sort: str,
    *targets: prometheus.Dataquery,
    empty: str,
    descending: bool = True,
) -> table.Panel:
    """List the latest values; `columns` are the fields to show, in this order, with their names for people.

    Several queries become one row where all labels that they share are equal, so each aggregates to the same labels.
    """
    made = with_common(table.Panel(), title, text, targets, empty)
    made.unit("none").thresholds(steps(base=GREEN)).cell_height(common.TableCellHeight.SM).show_header(True)
    if len(targets) > 1:
        made.with_transformation(dashboard.DataTransformerConfig("merge", options={}))
    organize = {
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": columns,
        "includeByName": dict.fromkeys(columns, True),
        "excludeByName": {},
    }
    made.with_transformation(dashboard.DataTransformerConfig("organize", options=organize))
    made.sort_by([build_common.TableSortByFieldState().display_name(sort).desc(descending)])
    # Of a cell; the panel's own text is for a table without rows.
    made.override_by_field_type("string", settings(noValue="-"))
    if "instance" in columns:
        made.override_by_name("Node", settings(links=TO_NODE, custom__width=160))
    if {"instance", "gpu", "pid"} <= columns.keys():
        made.override_by_name("PID", settings(links=TO_PROCESS, custom__width=85))
    return made


def widths(made: table.Panel, **columns: int) -> table.Panel:
    """Widths in pixels; the rest share what is left."""
    for name, pixels in columns.items():
        made.override_by_name(name.replace("_", " "), settings(custom__width=pixels))
    return made

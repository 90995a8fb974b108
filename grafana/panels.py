"""Building blocks of Grafana boards in classic JSON: a query, a panel of each kind, a variable."""
# ruff: noqa: INP001  beside the programs that use it, not in a package

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NO_DATA = "No data: is the agent scraped?"
NODE = 'job=~"$job", instance=~"$instance"'
GPU = f'{NODE}, gpu=~"$gpu"'
LEGEND = "{{instance}} GPU {{gpu}}"
NOT_TOLD = "No data, or not told by these GPUs"
GREEN, AMBER, RED, BLUE, GREY, PURPLE = "green", "orange", "red", "blue", "#808080", "purple"


def query(expr: str, legend: str = "", *, table: bool = False) -> Json:
    """One query; a table and a stat ask for the present only."""
    target: Json = {"datasource": SOURCE, "editorMode": "code", "expr": expr, "legendFormat": legend or "__auto"}
    if table:
        target |= {"format": "table", "instant": True, "range": False}
    return target


def steps(*limits: tuple[float, str], base: str = GREEN) -> Json:
    """Thresholds: `base` below the first limit. Always set, for Grafana's own default paints 80 and more red."""
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": color, "value": at} for at, color in limits)],
    }


def words(**meanings: tuple[str, str]) -> list[Json]:
    """Value mappings `_1=("lost", RED)`: numbers that mean something are shown as what they mean."""
    options = {
        key.removeprefix("_"): {"text": text, "color": color, "index": place}
        for place, (key, (text, color)) in enumerate(meanings.items())
    }
    return [{"type": "value", "options": options}]


def override(matcher: str, options: str, **properties: object) -> Json:
    """Other settings for some series; `custom__x` sets `custom.x`."""
    settings = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": matcher, "options": options}, "properties": settings}


def panel(kind: str, title: str, text: str, targets: list[Json], *, empty: str = NO_DATA, **defaults: object) -> Json:
    """What every panel has. `defaults` are field settings: unit, min, max, thresholds, mappings, custom."""
    for letter, target in zip("ABCDEFGH", targets, strict=False):
        target["refId"] = letter
    fields = {"noValue": empty, "thresholds": steps()} | defaults
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": fields, "overrides": []},
        "options": {},
    }


def stat(
    title: str,
    text: str,
    expr: str,
    unit: str,
    *limits: tuple[float, str],
    empty: str = NO_DATA,
    **defaults: object,
) -> Json:
    """One number, with its background in the colour of its limit or mapping: green from 0 unless `limits` say else.

    Without a number it is purple: Grafana gives what is missing the lowest colour, and green would look calm.
    """
    colors = steps(*(limits or [(0, GREEN)]), base=PURPLE)
    target = query(expr, title) | {"instant": True, "range": False}
    made = panel("stat", title, text, [target], empty=empty, unit=unit, thresholds=colors, **defaults)
    made["options"] = {
        "colorMode": "background",
        "graphMode": "none",
        "textMode": "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return made


def series(
    title: str,
    text: str,
    unit: str,
    *targets: Json,
    custom: Json | None = None,
    empty: str = NO_DATA,
    **defaults: object,
) -> Json:
    """Lines over time. A gap in the data is a gap in the line."""
    lines = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False} | (custom or {})
    made = panel("timeseries", title, text, list(targets), empty=empty, unit=unit, min=0, custom=lines, **defaults)
    made["options"] = {
        "legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def dashed(made: Json, ref_id: str) -> Json:
    """A limit is a dashed line without a fill, so that it is not taken for a reading."""
    line = {"fill": "dash", "dash": [6, 6]}
    limit = override("byFrameRefID", ref_id, custom__lineStyle=line, custom__fillOpacity=0)
    made["fieldConfig"]["overrides"].append(limit)
    return made


def timeline(title: str, text: str, target: Json, mappings: list[Json]) -> Json:
    """States over time, in words and colours of their own."""
    custom = {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False}
    made = panel("state-timeline", title, text, [target], mappings=mappings, custom=custom)
    made["options"] = {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single"},
    }
    return made


def table(made: Json, columns: dict[str, str], sort: str) -> Json:
    """The columns of a table in their order, under names for people; others are left out."""
    organize = {
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": columns,
        "includeByName": dict.fromkeys(columns, True),
        "excludeByName": {},
    }
    made["transformations"] = [{"id": "organize", "options": organize}]
    made["options"] = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": sort, "desc": True}]}
    return made


def variable(name: str, label: str, expr: str) -> Json:
    """A choice of one, several or all values of a label."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": expr, "refId": f"variable-{name}"},
        "definition": expr,
        "refresh": 2,  # when the time range changes
        "sort": 3,  # by number
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }

"""From rows of panels to a board: places, ids, variables, links and annotations."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard
from panels import GPU, GREY, NODE, PURPLE, SOURCE, Panel

ALL = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
TAG = "gpuagent"
WIDTH = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels of one size, side by side. Without a title it goes on with the row above; `closed` costs no query."""

    title: str
    panels: Sequence[Panel]
    width: int
    height: int
    closed: bool = False


def choice(name: str, label: str, values: str) -> build.QueryVariable:
    """One, several or all values of a label, looked up again when the time range changes."""
    made = build.QueryVariable(name).label(label).datasource(SOURCE).definition(values)
    made.query({"query": values, "refId": f"variable-{name}"}).refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.sort(dashboard.VariableSort.NUMERICAL_ASC)
    # Not Grafana's list of all values: it is long, and empty while nothing is known.
    return made.multi(True).include_all(True).all_value(".+").current(ALL)


def one(name: str, label: str, values: str) -> build.QueryVariable:
    """One value of a label, the first one at first: all of a fleet would be much to ask. Several can be chosen."""
    made = build.QueryVariable(name).label(label).datasource(SOURCE).definition(values)
    made.query({"query": values, "refId": f"variable-{name}"}).refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return made.sort(dashboard.VariableSort.NUMERICAL_ASC).multi(True).include_all(False)


def common_choices(*, one_node: bool = False) -> list[build.DatasourceVariable | build.QueryVariable]:
    """Of every board, so that links between boards can hand them on."""
    return [
        build.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        choice("job", "Job", "label_values(gpuagent_build_info, job)"),
        (one if one_node else choice)(
            "instance", "Instance", 'label_values(gpuagent_build_info{job=~"$job"}, instance)'
        ),
        # From the info metric, which a GPU has also while no reading of it can be had.
        choice("gpu", "GPU", f"label_values(gpuagent_gpu_info{{{NODE}}}, gpu)"),
    ]


def note(name: str, color: str, expr: str, title: str, text: str, tags: str) -> build.AnnotationQuery:
    """Mark times on every panel; the value of `expr` is their Unix time in milliseconds."""
    made = build.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)
    return made.title_format(title).text_format(text).tag_keys(tags).step("15s").use_value_for_time(True)


def notes(selector: str = GPU) -> list[build.AnnotationQuery]:
    """Mark what was done to processes, and what will be."""
    who = "{{process}} (pid {{pid}}, {{user}}) on {{instance}} GPU {{gpu}}"
    return [
        note(
            "Remedies",
            PURPLE,
            f'1000 * gpuagent_remedy_end_timestamp_seconds{{{selector}, dry_run="false"}}',
            "Remedy: {{step}}: {{result}}",
            who,
            "result",
        ),
        note(
            "Remedies (dry run)",
            GREY,
            f'1000 * gpuagent_remedy_end_timestamp_seconds{{{selector}, dry_run="true"}}',
            "Dry run, nothing was done: {{step}}: {{result}}",
            who,
            "result",
        ),
        note(
            "Announced",
            "orange",
            f"1000 * gpuagent_remedy_announced_timestamp_seconds{{{selector}}}",
            "Will be acted on",
            who,
            "unit",
        ),
    ]


def board(
    uid: str,
    title: str,
    text: str,
    rows: Iterable[Row],
    choices: Sequence[build.DatasourceVariable | build.QueryVariable],
    annotations: Sequence[build.AnnotationQuery],
) -> dashboard.Dashboard:
    """Build the whole board. Its uid is a contract: people keep addresses of it."""
    made = build.Dashboard(title).uid(uid).description(text).tags(["gpu", TAG]).readonly().version(1)
    made.time("now-1h", "now").refresh("30s").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    others = build.DashboardLink("GPU boards").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    made.link(others.as_dropdown(False).include_vars(True).keep_time(True).icon("external link"))
    for variable in choices:
        made.with_variable(variable)
    for annotation in annotations:
        made.annotation(annotation)
    ids = count(1)
    top = 0
    for row in rows:
        header = None
        if row.title:
            place = dashboard.GridPos(h=1, w=WIDTH, x=0, y=top)
            header = build.Row(row.title).id(next(ids)).collapsed(row.closed).grid_pos(place)
            top += 1
        inside, top = placed(row, ids, top)
        if row.closed and header is not None:
            for panel in inside:
                header.with_panel(panel)
            inside = []
        if header is not None:
            made.with_row(header)
        for panel in inside:
            made.with_panel(panel)
    return made.build()


def placed(row: Row, ids: Iterable[int], top: int) -> tuple[list[Panel], int]:
    """Return the row's panels with ids and places from the line `top` on, and the line below them."""
    across = WIDTH // row.width
    for place, (panel, number) in enumerate(zip(row.panels, ids, strict=False)):
        down, along = divmod(place, across)
        panel.id(number).grid_pos(
            dashboard.GridPos(h=row.height, w=row.width, x=along * row.width, y=top + down * row.height)
        )
    return list(row.panels), top + -(-len(row.panels) // across) * row.height

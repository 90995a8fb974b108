"""Panels of each kind, with what all of them must have: a description, a unit, and words for when there is no data."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

import re
from typing import TypeVar

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

Panel = stat.Panel | timeseries.Panel | statetimeline.Panel | table.Panel
Made = TypeVar("Made", stat.Panel, timeseries.Panel, statetimeline.Panel, table.Panel)

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
NODE = 'job=~"$job", instance=~"$instance"'
GPU = f'{NODE}, gpu=~"$gpu"'
KEYS = "job, instance, gpu, uuid, pid, gpu_instance_id, compute_instance_id"
"""What makes a process one of its kind: join by these."""
LEGEND = "{{instance}} GPU {{gpu}}"
NO_DATA = "No data: is the agent scraped?"
RULES = "No data: is the agent scraped, and are the recording rules loaded (docs/prometheus.md)?"
NOT_TOLD = "No data, or not told by these GPUs"
GREEN, AMBER, RED, BLUE, GREY, PURPLE = "green", "orange", "red", "blue", "#808080", "purple"
UNUSED = "#5a6168"
"""What nobody holds: a grey, for it is no news, and a saturated color draws the eye."""
GIB_PER_HOUR = " * 3600 / 1024 ^ 3"
GIB_PER_HOUR_UNIT = "suffix: GiB/h"
"""Growth is told per hour on every surface: Grafana itself knows bytes per second only."""
CALM = ((0, GREEN),)
NEITHER = ((0, BLUE),)
"""For numbers that are neither good nor bad."""
BAD_FROM_ONE = ((0, GREEN), (1, RED))


def query(expr: str, legend: str = "__auto") -> prometheus.Dataquery:
    """Query over the time range; `legend` names its series."""
    return prometheus.Dataquery().datasource(SOURCE).editor_mode(QueryEditorMode.CODE).expr(expr).legend_format(legend)


def latest(expr: str) -> prometheus.Dataquery:
    """Query at the end of the time range, for a table: one row for each series, one column for each label."""
    return query(expr).format(PromQueryFormat.TABLE).instant()


def steps(*limits: tuple[float, str], base: str) -> build.ThresholdsConfig:
    """Thresholds: `base` below the first limit. Always set, for Grafana's own default paints 80 and more red."""
    colors = [dashboard.Threshold(None, base), *(dashboard.Threshold(at, color) for at, color in limits)]
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(colors)


def words(*meanings: tuple[str, str], start: int = 0) -> list[dashboard.ValueMapping]:
    """Numbers that mean something, from `start` on, as what they mean: (text, color) of each."""
    options = {
        str(number): dashboard.ValueMappingResult(text=text, color=color, index=number - start)
        for number, (text, color) in enumerate(meanings, start)
    }
    return [dashboard.ValueMap(options)]


def settings(**properties: object) -> list[dashboard.DynamicConfigValue]:
    """Field settings of an override; `custom__x` is `custom.x`."""
    return [dashboard.DynamicConfigValue(name.replace("__", "."), value) for name, value in properties.items()]


def with_common(made: Made, title: str, text: str, targets: tuple[prometheus.Dataquery, ...], empty: str) -> Made:
    """Set what every panel has. `empty` is shown when nothing comes back, and must not sound calm."""
    for letter, target in zip("ABCDEFGHIJ", targets, strict=False):
        made.with_target(target.ref_id(letter))
    return made.title(title).description(text).datasource(SOURCE).no_value(empty)


def number(
    title: str,
    text: str,
    expr: str,
    unit: str,
    limits: tuple[tuple[float, str], ...] = CALM,
    meanings: list[dashboard.ValueMapping] | None = None,
    empty: str = NO_DATA,
    decimals: int | None = None,
) -> stat.Panel:
    """One number, its background in the color of its limit or meaning.

    Without a number it is purple: Grafana gives what is missing the lowest color, and green would look calm.
    """
    made = with_common(stat.Panel(), title, text, (query(expr, title).instant(),), empty)
    made.unit(unit).thresholds(steps(*limits, base=PURPLE)).mappings(meanings or [])
    made.color_mode(common.BigValueColorMode.BACKGROUND).graph_mode(common.BigValueGraphMode.NONE)
    made.text_mode(common.BigValueTextMode.VALUE)
    made.reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    return made if decimals is None else made.decimals(decimals)


def lines(
    title: str, text: str, unit: str, *targets: prometheus.Dataquery, empty: str = NO_DATA, most: float | None = None
) -> timeseries.Panel:
    """Lines over time. A gap in the data is a gap in the line. `most` fixes the axis' upper end.

    The legend has the value at the end of the range, and none for a line that has ended: what a GPU had before it was
    lost is not what it has.
    """
    made = with_common(timeseries.Panel(), title, text, targets, empty)
    made.unit(unit).min(0).thresholds(steps(base=GREEN))
    made.line_width(1).fill_opacity(10).show_points(common.VisibilityMode.NEVER).span_nulls(False)
    # One frame with all of them has nothing where a line has ended, and so no last value either.
    made.with_transformation(
        dashboard.DataTransformerConfig("joinByField", options={"byField": "Time", "mode": "outer"})
    )
    made.override_by_field_type("number", settings(noValue="-"))
    legend = build_common.VizLegendOptions().show_legend(True).calcs(["last", "max"])
    made.legend(legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.BOTTOM))
    made.tooltip(
        build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    return made if most is None else made.max(most)


def counts(made: timeseries.Panel) -> timeseries.Panel:
    """For numbers that are nearly always 0: whole, and without an axis up to 100."""
    return made.decimals(0).axis_soft_max(1)


def stacked(made: timeseries.Panel, **colors: str) -> timeseries.Panel:
    """One upon another, each in a color of its own: `live_processes` is the series called "live processes"."""
    made.stacking(build_common.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for name, color in colors.items():
        fixed = {"mode": "fixed", "fixedColor": color}
        made.override_by_name(name.replace("_", " "), settings(color=fixed))
    return made.fill_opacity(60).line_width(0)


def dashed(made: timeseries.Panel, ref_id: str) -> timeseries.Panel:
    """Draw a limit as a dashed line without a fill, so that it is not taken for a reading."""
    return styled(made, ref_id, {"fill": "dash", "dash": [6, 6]})


def styled(made: timeseries.Panel, ref_id: str, style: dict[str, object]) -> timeseries.Panel:
    """Draw the lines of one query in a style, without a fill. They go by their names: joined lines have no query."""
    target = next(each for each in made.build().targets or [] if getattr(each, "ref_id", "") == ref_id)
    legend = re.split(r"\{\{\w+\}\}", str(getattr(target, "legend_format", "")))
    pattern = "/^" + ".*".join(map(re.escape, legend)).replace("\\ ", " ") + "$/"
    return made.override_by_regexp(pattern, settings(custom__lineStyle=style, custom__fillOpacity=0))


def states(
    title: str,
    text: str,
    meanings: list[dashboard.ValueMapping],
    *targets: prometheus.Dataquery,
    empty: str = NO_DATA,
) -> statetimeline.Panel:
    """States over time, in words and colors of their own."""
    made = with_common(statetimeline.Panel(), title, text, targets, empty)
    made.mappings(meanings).thresholds(steps(base=GREY)).unit("none")
    made.fill_opacity(80).line_width(0).row_height(0.8).span_nulls(False)
    made.merge_values(True).show_value(common.VisibilityMode.NEVER)
    legend = build_common.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST)
    made.legend(legend.placement(common.LegendPlacement.BOTTOM))
    return made.tooltip(build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE))

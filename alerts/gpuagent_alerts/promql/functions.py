"""Functions: which there are, what they take, and what they are compiled to.

Go counts seconds in 64 bits from a year far in the past and wraps around at the ends; NaN becomes the lowest integer,
as on amd64. https://github.com/golang/go/blob/go1.19/src/time/time.go has the numbers.
"""

from __future__ import annotations

import math
from calendar import monthrange
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from gpuagent.core.matchers import MatchOperator, is_label_name
from gpuagent_alerts.promql.numbers import FUNCTIONS_OF_ONE_VALUE, NAN, larger, rounding, smaller
from gpuagent_alerts.promql.series import (
    Pattern,
    Plan,
    ScalarPlan,
    StringPlan,
    Tick,
    VectorPlan,
    checked,
    require_distinct,
)
from gpuagent_alerts.promql.syntax import Call, Node, Selector
from gpuagent_alerts.promql.values import (
    METRIC_NAME,
    NO_LABELS,
    Element,
    ExpressionError,
    LabelSet,
    with_name,
    without_name,
)

_SECONDS_PER_DAY = 86_400
_DAYS_PER_CYCLE = 146_097
"""The days of 400 years, after which the calendar repeats."""
_CYCLE_START = date(2001, 1, 1)
"""A Monday, as the first day of Go's absolute year."""
_ABSOLUTE_YEAR = -292_277_022_399
_EPOCH = 9_223_372_028_715_321_600
"""Seconds from the absolute year to 1970."""


class Moment(NamedTuple):
    """A second, taken apart. `day` lies in another year that has the same calendar."""

    year: int
    day: date
    second_of_day: int


def moment(seconds: float) -> Moment:
    """Return the moment of a Unix time; fractions are cut off."""
    whole = math.trunc(seconds) if math.isfinite(seconds) and -(2.0**63) <= seconds < 2.0**63 else -(2**63)
    days, second_of_day = divmod((whole + _EPOCH) % 2**64, _SECONDS_PER_DAY)
    cycles, day_of_cycle = divmod(days, _DAYS_PER_CYCLE)
    day = _CYCLE_START + timedelta(days=day_of_cycle)
    return Moment(_ABSOLUTE_YEAR + 400 * cycles + day.year - _CYCLE_START.year, day, second_of_day)


CALENDAR_FUNCTIONS: dict[str, Callable[[Moment], int]] = {
    "minute": lambda at: at.second_of_day % 3600 // 60,
    "hour": lambda at: at.second_of_day // 3600,
    "day_of_week": lambda at: at.day.isoweekday() % 7,
    "day_of_month": lambda at: at.day.day,
    "day_of_year": lambda at: at.day.timetuple().tm_yday,
    "days_in_month": lambda at: monthrange(at.day.year, at.day.month)[1],
    "month": lambda at: at.day.month,
    "year": lambda at: at.year,
}


def plan_label_replace(vector: VectorPlan, destination: str, template: str, source: str, regex: str) -> VectorPlan:
    """Plan label_replace. Raises ExpressionError for a wrong regular expression or label.

    Prometheus tells of those when the rule is evaluated, and then every time.
    """
    pattern = Pattern(regex)
    replacement = pattern.template(template)
    _check_label(destination, "destination", "label_replace")

    def replace(element: Element) -> Element:
        labels = with_name(element[0], element[1])
        groups = pattern.groups(labels.get(source, ""))
        if groups is None:
            return element
        return *without_name({**labels, destination: replacement(groups)}), element[2]

    return _relabelled(vector, replace)


def plan_label_join(vector: VectorPlan, destination: str, separator: str, sources: Sequence[str]) -> VectorPlan:
    """Plan label_join. Raises ExpressionError for a wrong label."""
    for source in sources:
        _check_label(source, "source", "label_join")
    _check_label(destination, "destination", "label_join")

    def join(element: Element) -> Element:
        labels = with_name(element[0], element[1])
        joined = separator.join([labels.get(source, "") for source in sources])
        return *without_name({**labels, destination: joined}), element[2]

    return _relabelled(vector, join)


def _relabelled(vector: VectorPlan, change: Callable[[Element], Element]) -> VectorPlan:
    def run(tick: Tick) -> list[Element]:
        return require_distinct([change(element) for element in vector.run(tick)])

    return VectorPlan(run, distinct=False)


def _check_label(label: str, role: str, function: str) -> None:
    if not is_label_name(label):
        raise ExpressionError(f"invalid {role} label name in {function}(): {label!r}")


class _Arguments:
    """The arguments of one call. Asking for one of another type raises ExpressionError, which says how to write it."""

    def __init__(self, node: Call, plans: Sequence[Plan], signature: str) -> None:
        self.nodes = node.arguments
        self.count = len(plans)
        self._plans = plans
        self._wrong = ExpressionError(f"the arguments of {node.function} are wrong: write {signature}")

    def expect(self, counts: range) -> None:
        if self.count not in counts:
            raise self._wrong

    def vector(self, position: int) -> VectorPlan:
        plan = self._plans[position]
        if isinstance(plan, VectorPlan):
            return plan
        raise self._wrong

    def scalar(self, position: int) -> Callable[[Tick], float]:
        plan = self._plans[position]
        if isinstance(plan, ScalarPlan):
            return plan.run
        raise self._wrong

    def string(self, position: int) -> str:
        plan = self._plans[position]
        if isinstance(plan, StringPlan):
            return plan.value
        raise self._wrong


class _Function(NamedTuple):
    signature: str
    counts: range
    """How many arguments it takes."""
    plan: Callable[[_Arguments], Plan]


def plan_call(node: Call, arguments: Sequence[Plan]) -> Plan:
    """Plan a call. Raises ExpressionError for a function that is not available, and for wrong arguments."""
    function = _FUNCTIONS.get(node.function)
    if function is None:
        hint = _HINTS.get(node.function, "evaluate this rule in Prometheus, or use " + ", ".join(sorted(_FUNCTIONS)))
        raise ExpressionError(f"{node.function}(...) is not available in the agent: {hint}")
    taken = _Arguments(node, arguments, function.signature)
    taken.expect(function.counts)
    return function.plan(taken)


def _of_one_value(function: Callable[[float], float]) -> Callable[[_Arguments], Plan]:
    return lambda arguments: _mapped(arguments.vector(0), lambda _tick: function)


def _of_date(part: Callable[[Moment], int]) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        if arguments.count:
            return _mapped(arguments.vector(0), lambda _tick: lambda value: float(part(moment(value))))
        return VectorPlan(lambda tick: [("", NO_LABELS, float(part(moment(tick.milliseconds // 1000))))], distinct=True)

    return plan


def _mapped(vector: VectorPlan, function_at: Callable[[Tick], Callable[[float], float]]) -> VectorPlan:
    """Return a function of each value, which may depend on scalars of the tick. Names are dropped."""
    elements = vector.run

    def run(tick: Tick) -> list[Element]:
        function = function_at(tick)
        return [("", labels, function(value)) for _, labels, value in elements(tick)]

    return checked(run, distinct=vector.distinct)


def _round(arguments: _Arguments) -> Plan:
    if arguments.count == 1:
        by_one = rounding(1.0)
        return _mapped(arguments.vector(0), lambda _tick: by_one)
    nearest = arguments.scalar(1)
    return _mapped(arguments.vector(0), lambda tick: rounding(nearest(tick)))


def _clamp(arguments: _Arguments) -> Plan:
    vector, low, high = arguments.vector(0), arguments.scalar(1), arguments.scalar(2)

    def between(tick: Tick) -> list[Element]:
        elements = vector.run(tick)
        # Nothing is, where the bounds are the wrong way round.
        return [] if high(tick) < low(tick) else elements

    def function_at(tick: Tick) -> Callable[[float], float]:
        minimum, maximum = low(tick), high(tick)
        return lambda value: larger(minimum, smaller(maximum, value))

    return _mapped(VectorPlan(between, distinct=vector.distinct), function_at)


def _bounded(choose: Callable[[float, float], float]) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        bound = arguments.scalar(1)

        def function_at(tick: Tick) -> Callable[[float], float]:
            limit = bound(tick)
            return lambda value: choose(limit, value)

        return _mapped(arguments.vector(0), function_at)

    return plan


def _sort(direction: int) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        vector = arguments.vector(0)

        def run(tick: Tick) -> list[Element]:
            # NaN comes last either way.
            return sorted(vector.run(tick), key=lambda element: (math.isnan(element[2]), direction * element[2]))

        return VectorPlan(run, distinct=vector.distinct)

    return plan


def _scalar(arguments: _Arguments) -> Plan:
    elements = arguments.vector(0).run

    def run(tick: Tick) -> float:
        found = elements(tick)
        return found[0][2] if len(found) == 1 else NAN

    return ScalarPlan(run)


def _vector(arguments: _Arguments) -> Plan:
    scalar = arguments.scalar(0)
    return VectorPlan(lambda tick: [("", NO_LABELS, scalar(tick))], distinct=True)


def _time(_arguments: _Arguments) -> Plan:
    return ScalarPlan(lambda tick: tick.milliseconds / 1000)


def _absent(arguments: _Arguments) -> Plan:
    elements = arguments.vector(0).run
    labels = _labels_of_absent(arguments.nodes[0])
    return VectorPlan(lambda tick: [] if elements(tick) else [("", labels, 1.0)], distinct=True)


def _labels_of_absent(argument: Node) -> LabelSet:
    """Return what a selector asks for by equality; a label that is asked for twice is left out."""
    wanted: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in argument.matchers if isinstance(argument, Selector) else ():
        if matcher.name == METRIC_NAME:
            continue
        if matcher.op is MatchOperator.EQUAL and matcher.name not in seen:
            wanted[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            wanted.pop(matcher.name, None)
    return LabelSet((name, value) for name, value in wanted.items() if value)


def _label_replace(arguments: _Arguments) -> Plan:
    destination, template, source, regex = (arguments.string(position) for position in range(1, 5))
    return plan_label_replace(arguments.vector(0), destination, template, source, regex)


def _label_join(arguments: _Arguments) -> Plan:
    destination, separator, *sources = (arguments.string(position) for position in range(1, arguments.count))
    return plan_label_join(arguments.vector(0), destination, separator, sources)


_FUNCTIONS: dict[str, _Function] = {
    **{
        name: _Function(f"{name}(vector)", range(1, 2), _of_one_value(function))
        for name, function in FUNCTIONS_OF_ONE_VALUE.items()
    },
    **{
        name: _Function(f"{name}() or {name}(vector)", range(2), _of_date(part))
        for name, part in CALENDAR_FUNCTIONS.items()
    },
    "absent": _Function("absent(vector)", range(1, 2), _absent),
    "scalar": _Function("scalar(vector)", range(1, 2), _scalar),
    "vector": _Function("vector(scalar)", range(1, 2), _vector),
    "time": _Function("time()", range(1), _time),
    "sort": _Function("sort(vector)", range(1, 2), _sort(1)),
    "sort_desc": _Function("sort_desc(vector)", range(1, 2), _sort(-1)),
    "round": _Function("round(vector) or round(vector, nearest)", range(1, 3), _round),
    "clamp": _Function("clamp(vector, min, max)", range(3, 4), _clamp),
    "clamp_min": _Function("clamp_min(vector, min)", range(2, 3), _bounded(larger)),
    "clamp_max": _Function("clamp_max(vector, max)", range(2, 3), _bounded(smaller)),
    "label_replace": _Function(
        'label_replace(vector, "destination", "replacement", "source", "regex")', range(5, 6), _label_replace
    ),
    "label_join": _Function(
        'label_join(vector, "destination", "separator", "source", ...)', range(3, 1_000_000), _label_join
    ),
}
_HINTS = {
    "timestamp": "the agent's series are all of the same moment; use time()",
    "histogram_quantile": "the agent has no histograms; evaluate this rule in Prometheus",
    "pi": "write 3.141592653589793",
}

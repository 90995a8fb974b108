"""Random series, and random expressions out of the part of PromQL that the agent evaluates.

promtool's series come in a random order, so what depends on the order is asked for only where that does not show: among
equal values topk picks any, and sums of rounded values differ in their last digits, which a comparison would turn into
rows. So values are multiples of 1/4, and functions that round are outermost.
"""

from __future__ import annotations

import math
from random import Random

from tests.alerts.promql.promtool import Case, Series
from tests.alerts.promql.spoil import WORDS, spoiled

METRICS = ("used_bytes", "limit_bytes", "busy_ratio", "errors_total", "info")
LABELS = ("gpu", "uuid", "pid", "mode")
WITH_NAME = (*LABELS, "__name__")
LABEL_VALUES = {
    "gpu": ("0", "1", "2", ""),
    "uuid": ("GPU-0", "GPU-1"),
    "pid": ("100", "101"),
    "mode": ("a", "b", ""),
}
VALUES = (0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 7.0, 100.0, -1.0, -2.5, math.nan, math.inf, -math.inf)
NUMBERS = ("0", "1", "2", "3", "0.5", "1e2", "010", "0x1F", ".25", "Inf", "NaN", "+Inf", "-1")
QUANTILES = ("0", "0.25", "0.9", "1", "2", "-1", "NaN")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
EXACT_ARITHMETIC = ("+", "-", "*")
ROUNDING_ARITHMETIC = ("/", "%", "^", "atan2")
EXACT_AGGREGATIONS = ("sum", "min", "max", "count", "group")
ROUNDING_AGGREGATIONS = ("avg", "stddev", "stdvar")
EXACT_FUNCTIONS = ("abs", "ceil", "floor", "sgn", "sort", "sort_desc", "round")
ROUNDING_FUNCTIONS = ("sqrt", "exp", "ln", "log2", "log10")
DATE_FUNCTIONS = ("minute", "hour", "day_of_week", "day_of_month", "day_of_year", "days_in_month", "month", "year")
DATES = ("1e9", "1677715200", "-86401", "951782400.5", "NaN", "1e300", "time()")
REPLACEMENTS = (
    (".*", "x"),
    ("(.)(.*)", "$2-${1}x$$"),
    ("GPU-(?P<index>\\\\d)", "$index"),
    ("[01]", ""),
    ("(a|b)|c", "[$1]"),
)


class Generator:
    """Writes cases; the same seed writes the same."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._pick = self._random.choice

    def case(self, expressions: int = 12) -> Case:
        """A node's worth of series, and expressions over them."""
        return Case(self._series(), [self._expression() for _ in range(expressions)])

    def spoiled_case(self) -> Case:
        """The same with mistakes in the expressions, and some that are nothing but words."""
        case = self.case()
        soup = [" ".join(self._random.choices(WORDS, k=self._random.randrange(1, 6))) for _ in range(4)]
        return Case(case.series, [*(spoiled(expression, self._random) for expression in case.expressions), *soup])

    def _series(self) -> list[Series]:
        chance = self._random.random
        series: list[Series] = []
        for metric in METRICS:
            for gpu in range(self._pick((0, 2, 3, 3))):
                for pid in range(self._pick((1, 1, 2))):
                    labels = {"gpu": str(gpu), "uuid": f"GPU-{gpu}", "pid": str(100 + pid), "mode": self._pick("abc")}
                    kept = {label: text for label, text in labels.items() if label == "pid" or chance() > 0.15}
                    series.append((metric, kept, self._pick(VALUES)))
        # Without equal values, for topk and bottomk.
        for rank in range(self._random.randrange(1, 8)):
            labels = {"gpu": str(rank % 3), "pid": str(rank)}
            series.append(("distinct", labels, math.nan if rank == 5 else rank * 1.25 - 3))
        return list({(name, *sorted(labels.items())): (name, labels, value) for name, labels, value in series}.values())

    def _expression(self) -> str:
        def rounding() -> str:
            return self._pick(ROUNDING_ARITHMETIC)

        return self._pick((
            lambda: self._vector(3),
            lambda: self._vector(3),
            lambda: f"{self._pick(ROUNDING_AGGREGATIONS)}{self._grouping()}({self._vector(3)})",
            lambda: f"{self._pick(ROUNDING_FUNCTIONS)}({self._vector(2)})",
            lambda: f"({self._vector(1)}) {rounding()} {self._matching()}({self._vector(1)})",
            lambda: f"{self._vector(1)} {rounding()} {self._scalar(1)}",
            lambda: f"quantile{self._grouping()}({self._pick(QUANTILES)}, {self._vector(3)})",
            self._chain,
            lambda: self._scalar(2),
        ))()  # fmt: skip

    def _chain(self) -> str:
        """Operators without parentheses: precedence and associativity decide."""
        words = [self._pick(NUMBERS)]
        for _ in range(self._random.randrange(1, 6)):
            operator = self._pick((*EXACT_ARITHMETIC, *ROUNDING_ARITHMETIC))
            words += [operator, self._pick(("", "-", "- ")) + self._pick(NUMBERS)]
        if self._random.random() < 0.5:
            words[self._random.randrange(0, len(words), 2)] = self._selector()
            words += [self._pick(COMPARISONS), "bool", self._pick(NUMBERS)]
        return " ".join(words)

    def _vector(self, depth: int) -> str:
        if depth == 0:
            return self._selector()
        below = depth - 1

        def compare() -> str:
            return f"{self._pick(COMPARISONS)} {self._bool()}"

        return self._pick((
            self._selector,
            self._selector,
            lambda: f"{self._vector(below)} {self._pick(EXACT_ARITHMETIC)} {self._scalar(below)}",
            lambda: f"{self._scalar(below)} {self._pick(EXACT_ARITHMETIC)} ({self._vector(below)})",
            lambda: f"({self._vector(below)} {compare()}{self._scalar(below)})",
            lambda: f"({self._scalar(below)} {compare()}{self._vector(below)})",
            lambda: f"({self._vector(below)}) {self._pick(EXACT_ARITHMETIC)} {self._matching()}({self._vector(below)})",
            lambda: f"({self._vector(below)}) {compare()}{self._matching()}({self._vector(below)})",
            lambda: self._set_operation(below),
            lambda: self._set_operation(below),
            lambda: self._aggregation(below),
            lambda: self._function(below),
            lambda: f"-({self._vector(below)})",
            lambda: self._relabelling(below),
            lambda: self._joined_by_group(below),
        ))()  # fmt: skip

    def _set_operation(self, below: int) -> str:
        operator = self._pick(("and", "or", "unless"))
        return f"({self._vector(below)} {operator} {self._on_or_ignoring()}{self._vector(below)})"

    def _joined_by_group(self, below: int) -> str:
        """Many-to-one as rules write it: it succeeds more often than what is made up at random."""
        label = self._pick(("gpu", "pid"))
        one = f"{self._pick(EXACT_AGGREGATIONS)} by ({label}) ({self._vector(below)})"
        operator = self._pick((*EXACT_ARITHMETIC, *COMPARISONS))
        include = self._pick(("()", "(mode)", "(mode, uuid)"))
        return self._pick((
            f"{self._selector()} {operator} on({label}) group_left{include} {one}",
            f"{one} {operator} on({label}) group_right{include} {self._selector()}",
        ))  # fmt: skip

    def _aggregation(self, below: int) -> str:
        operator = self._pick(EXACT_AGGREGATIONS)
        best, count = self._pick(("topk", "bottomk")), self._pick(("0", "1", "2", "3", "99"))
        label = self._pick(("value", "mode"))
        return self._pick((
            lambda: f"{best}{self._grouping()}({count}, distinct{self._matchers()})",
            lambda: f'count_values{self._grouping()}("{label}", {self._selector()})',
            lambda: f"{operator}({self._vector(below)}){self._grouping()}",
            lambda: f"{operator}{self._grouping()}({self._vector(below)})",
            lambda: f"{operator}{self._grouping()}({self._vector(below)})",
        ))()  # fmt: skip

    def _function(self, below: int) -> str:
        vector, number = self._vector(below), self._pick(NUMBERS)
        missing = f"((nothing{self._matchers()}))"
        dates = self._pick(("", f"vector({self._pick(DATES)})", vector))
        return self._pick((
            f"clamp({vector}, {number}, {self._pick(NUMBERS)})",
            f"{self._pick(('clamp_min', 'clamp_max'))}({vector}, {number})",
            f"round({vector}, {self._pick(('0.5', '2', '1', '0', '-1', 'Inf'))})",
            f"absent({self._pick((vector, missing))})",
            f"vector({self._scalar(below)})",
            f"{self._pick(DATE_FUNCTIONS)}({dates})",
            f"{self._pick(EXACT_FUNCTIONS)}({vector})",
            f"{self._pick(EXACT_FUNCTIONS)}({vector})",
        ))  # fmt: skip

    def _relabelling(self, below: int) -> str:
        vector = self._vector(below)
        destination = self._pick((*WITH_NAME, "new"))
        source = self._pick((*WITH_NAME, "absent", ""))
        regex, template = self._pick(REPLACEMENTS)
        sources = "".join(f', "{self._pick(WITH_NAME)}"' for _ in range(self._random.randrange(3)))
        return self._pick((
            f'label_replace({vector}, "{destination}", "{template}", "{source}", "{regex}")',
            f'label_join({vector}, "{destination}", "{self._pick(("-", ""))}"{sources})',
        ))  # fmt: skip

    def _scalar(self, depth: int) -> str:
        if depth == 0:
            return self._pick(NUMBERS)
        below = depth - 1
        return self._pick((
            lambda: f"scalar({self._vector(below)})",
            lambda: "time()",
            lambda: f"({self._scalar(below)} {self._pick(EXACT_ARITHMETIC)} {self._scalar(below)})",
            lambda: f"({self._scalar(below)} {self._pick(COMPARISONS)} bool {self._scalar(below)})",
            lambda: f"-({self._scalar(below)})",
            lambda: self._pick(NUMBERS),
        ))()  # fmt: skip

    def _selector(self) -> str:
        if self._random.random() < 0.08:
            return '{__name__=~"used_.*|limit_.*"' + self._pick(("", ',gpu!=""', ',mode=~"a|b"')) + "}"
        return self._pick((*METRICS, *METRICS, *METRICS, "nothing")) + self._matchers()

    def _matchers(self) -> str:
        matchers = []
        for _ in range(self._pick((0, 0, 0, 1, 1, 2))):
            label = self._pick(LABELS)
            value = self._pick(LABEL_VALUES[label])
            operator, text = self._pick((
                ("=", value), ("!=", value), ("=~", f"{value}|1"), ("=~", ".+"), ("=~", ".*"), ("!~", value),
                ("!~", ".+"),
            ))  # fmt: skip
            matchers.append(f'{label}{operator}"{text}"')
        return "{" + ", ".join(matchers) + "}" if matchers else ""

    def _labels(self) -> str:
        return ", ".join(self._random.sample(WITH_NAME, self._random.randrange(4)))

    def _grouping(self) -> str:
        return self._pick(("", f" by ({self._labels()}) ", f" without ({self._labels()}) "))

    def _on_or_ignoring(self) -> str:
        return self._pick(("", f"on({self._labels()}) ", f"ignoring({self._labels()}) "))

    def _matching(self) -> str:
        matching = self._on_or_ignoring()
        if not matching or self._random.random() < 0.4:
            return matching
        include = self._pick(("()", "()", "(mode)", "(uuid)", "(__name__)"))
        if include != "()" and include.strip("()") in matching:
            include = "()"
        return f"{matching}{self._pick(('group_left', 'group_right'))}{include} "

    def _bool(self) -> str:
        return self._pick(("", "bool "))

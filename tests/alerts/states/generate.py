"""Random rules over random series with gaps, and what our machine makes of them at every step: promtool judges it."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.formats import format_milliseconds
from gpuagent_alerts.rules.unit_file import load_unit_tests
from gpuagent_alerts.rules.unit_test import Simulation
from tests.alerts.promql.generate import Generator

_FAILURE = re.compile(r"rule: (\w+), time: \w+, err: (.*)")
_WHICH = re.compile(r"(?<=for the match group ).*(?= on the )|(?<=operation: \[).*(?=\];many)")
"""Of several duplicates promtool names any two: its series come in a random order."""
METRICS = ("m0", "m1", "m2")
EXPRESSIONS = (
    "m0 > 0",
    "m0 >= 1 and on (a) m1 > 0",
    "m0 unless on (a) m1",
    "m1 or m2",
    "m0 * on (a) group_left m2 > 1",
    "sum by (a) (m0) > 1",
    "max(m1) > 0",
    'absent(m0{a="1"})',
    "m2 == 0",
    "-m0 < bool 0",
    'm0{a=~"1|2"} > 0.5',
    "min by (a) (m1) != 1",
    "vector(1)",
    "vector(time()) % 300 < 120",
    "time() % 300",
    "count(m0) > 1",
    "r0 > 1",
    "r1 == 1 or r0 == 0",
    'ALERTS{alertname="A0", alertstate="firing"}',
    'count by (alertname) (ALERTS{alertstate="pending"}) > 0',
)
DURATIONS = ("0s", "30s", "1m", "90s", "2m", "3m", "5m", "7m")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"severity": "page"},
    {"from": "{{ $labels.a }}"},
    {"severity": "{{ $labels.none }}", "b": "x"},
    {"value": "{{ $value }}"},
    {"a": "{{ $labels.a }}!"},
)
ANNOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {"value": "{{ $value }}"},
    {"text": "{{ $labels.a }} has {{ $value | humanize }}", "empty": ""},
    {"p": "{{ humanizePercentage $value }}", "f": '{{ printf "%.2f" $value }}'},
    {"d": "{{ $value | humanizeDuration }}", "gpuagent_missing_data": "keep"},
)


@dataclass(frozen=True)
class Case:
    """A generated rule file, and the test file that holds what we say of it."""

    rules: Path
    tests: Path
    steps: int
    told: int
    """Firing alerts in all, so that a test can see that the cases are not empty."""
    failures: frozenset[tuple[str, str]]
    """Rules that fail at the last step, and with what: the test ends there."""


def write_case(folder: Path, seed: int) -> Case:
    """Make up rules and series, evaluate them with our machine, and write both files."""
    rnd = random.Random(seed)
    interval = rnd.choice((60_000, 60_000, 30_000))
    evaluation = rnd.choice((60_000, 30_000, 15_000))
    rules = folder / f"rules-{seed}.yaml"
    tests = folder / f"tests-{seed}.yaml"
    groups = list(_groups(rnd))
    rules.write_text(yaml.safe_dump({"groups": groups}))
    order = [group["name"] for group in groups]
    rnd.shuffle(order)
    test: dict[str, Any] = {
        "interval": format_milliseconds(interval),
        "input_series": list(_series(rnd, interval)),
        # For the length of the test; replaced below.
        "promql_expr_test": [{"expr": "1", "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": 1}]}],
    }
    document: dict[str, Any] = {
        "rule_files": [rules.name],
        "evaluation_interval": format_milliseconds(evaluation),
        "group_eval_order": order,
        "tests": [test],
    }
    tests.write_text(yaml.safe_dump(document))
    told, failures = _judge(tests, test, order, evaluation)
    tests.write_text(yaml.safe_dump(document))
    return Case(rules, tests, 1_800_000 // evaluation + 1, told, failures)


def _judge(
    tests: Path, test: dict[str, Any], order: list[str], evaluation: int
) -> tuple[int, frozenset[tuple[str, str]]]:
    """Run our machine over the test and put what it says into it."""
    loaded = load_unit_tests(tests)
    groups = sorted(load_rule_file(loaded.rule_files[0]), key=lambda group: order.index(group.name))
    simulation = Simulation(groups, loaded.tests[0])
    names = sorted({rule.name for group in groups for rule in group.rules if rule.name.startswith("A")})
    alerts: list[dict[str, Any]] = []
    expressions: list[dict[str, Any]] = []
    told = 0
    for time in range(0, 1_800_001, evaluation):
        failures = simulation.step(time)
        at = format_milliseconds(time)
        if failures:
            test["alert_rule_test"] = [*alerts, {"eval_time": at, "alertname": "A0", "exp_alerts": []}]
            test["promql_expr_test"] = []
            return told, parse_failures("\n".join(failures))
        for name in names:
            firing = simulation.firing(name)
            told += len(firing)
            alerts.append(
                {
                    "eval_time": at,
                    "alertname": name,
                    "exp_alerts": [
                        {
                            "exp_labels": {key: value for key, value in labels if key != "alertname"},
                            "exp_annotations": dict(annotations),
                        }
                        for labels, annotations in firing
                    ],
                }
            )
        states = [
            element
            for runner in simulation.runners
            for running in runner.rules
            if running.states is not None
            for element in running.states.series(time / 1000, time / 1000)
        ]
        for metric in ("ALERTS", "ALERTS_FOR_STATE"):
            samples = [
                {"labels": _write(metric, labels), "value": value} for name, labels, value in states if name == metric
            ]
            expressions.append({"expr": metric, "eval_time": at, "exp_samples": samples})
    test["alert_rule_test"], test["promql_expr_test"] = alerts, expressions
    return told, frozenset()


def parse_failures(report: str) -> frozenset[tuple[str, str]]:
    """Rules that failed, in a report that has nothing else; one that has more gives itself back."""
    lines = [line for line in report.splitlines() if line.strip() and line.strip() != "FAILED:"]
    matches = [_FAILURE.fullmatch(line.strip()) for line in lines]
    if not all(matches):
        return frozenset({("", report)})
    return frozenset((match[1], _WHICH.sub("", match[2])) for match in matches if match)


def _write(metric: str, labels: Mapping[str, str]) -> str:
    return metric + "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def _groups(rnd: random.Random) -> Iterator[dict[str, Any]]:
    number = 0
    for group in range(rnd.randint(1, 2)):
        rules: list[dict[str, Any]] = []
        for _ in range(rnd.randint(1, 4)):
            if rnd.random() < 0.25:
                record = {"record": rnd.choice(("r0", "r1")), "expr": rnd.choice(EXPRESSIONS[:12])}
                rules.append({**record, "labels": {"group": f"{group}.{len(rules)}"}})
            else:
                rules.append(_alert(rnd, number))
                number += 1
        yield {"name": f"g{group}", "rules": rules}


def _alert(rnd: random.Random, number: int) -> dict[str, Any]:
    made_up = Generator(rnd.randrange(2**32))._vector(2)
    rule: dict[str, Any] = {"alert": f"A{number}", "expr": rnd.choice((rnd.choice(EXPRESSIONS), made_up))}
    for key in ("for", "keep_firing_for"):
        if rnd.random() < 0.6:
            rule[key] = rnd.choice(DURATIONS)
    labels = dict(rnd.choice(LABELS))
    if labels:
        rule["labels"] = labels
    annotations = dict(rnd.choice(ANNOTATIONS))
    if annotations:
        rule["annotations"] = annotations
    return rule


def _series(rnd: random.Random, interval: int) -> Iterator[dict[str, str]]:
    steps = 1_800_000 // interval
    for metric in METRICS:
        for label in range(rnd.randint(1, 3)):
            yield {"series": f'{metric}{{a="{label}"}}', "values": " ".join(_values(rnd, steps))}
    for name, labels, value in Generator(rnd.randrange(2**32))._series():
        text = ", ".join(f'{label}="{of}"' for label, of in labels.items())
        yield {"series": f"{name}{{{text}}}", "values": " ".join(_stretches(rnd, steps, value))}


def _stretches(rnd: random.Random, steps: int, value: float) -> Iterator[str]:
    """The same value with gaps: among equal values topk may pick any, so each series keeps its own."""
    text = "NaN" if math.isnan(value) else str(value).replace("inf", "Inf")
    left = steps
    while left > 0:
        length = rnd.choice((1, 3, 8, 15))
        yield rnd.choice((*[" ".join([text] * length)] * 3, "stale", f"_x{length}"))
        left -= length


def _values(rnd: random.Random, steps: int) -> Iterator[str]:
    """Short and long stretches of the same value, gaps below and above the look-back, and markers."""
    left = steps
    while left > 0:
        length = rnd.choice((1, 1, 2, 3, 5, 8))
        kind = rnd.random()
        if kind < 0.2:
            yield f"_x{length + rnd.choice((0, 5, 12))}"
        elif kind < 0.35:
            yield "stale"
        elif kind < 0.4:
            yield rnd.choice(("NaN", "Inf", "-Inf"))
        elif kind < 0.5:
            yield f"{rnd.randint(-3, 3)}{rnd.choice('+-')}{rnd.choice((0.25, 1, 2))}x{length}"
        else:
            yield f"{rnd.choice((0, 0, 1, 1, 2, 0.5, 1234567, -1))}x{length}"
        left -= length

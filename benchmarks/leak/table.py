"""The results as Markdown: one table of methods, one of families."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.leak.families import FAMILIES
from benchmarks.leak.methods import APP, DETECTORS, FAST, METHODS, NVML, Method, Results
from benchmarks.leak.peers import PEERS
from benchmarks.leak.score import COUNTED, Interval, Score, alarmed, collapses, score
from benchmarks.leak.trace import Kind
from gpuagent_alerts.leak.settings import ALLOCATOR_SETTINGS, SENSITIVITIES, SETTINGS

_HEAD = (
    "method", "signal", "recall, %", "false alarms per process-day", "leak-free traces alarmed",
    "delay, min: median / p95", "share of life gone", "10 min before the end, %",
    "forecast / truth: median (p10 to p90), within x2", "us per update",
)  # fmt: skip
_IN_FAMILIES = (
    Method("gpuagent, balanced", APP),
    Method("gpuagent, strict", NVML),
    Method("gpuagent, balanced", NVML),
    *(Method(peer.name, NVML) for peer in PEERS),
)


def methods_table(results: Results) -> list[str]:
    """One row for each method."""
    rows = [
        score(method.name, method.signal, results.outcomes(method), results.update_seconds(method))
        for method in METHODS
    ]
    return _markdown(_HEAD, [_row(row) for row in rows])


def families_table(results: Results) -> list[str]:
    """Alarmed traces of each family, of how many."""
    short = {peer.name: peer.short for peer in PEERS}
    names = (short.get(method.name, f"{method.name}, {method.signal}") for method in _IN_FAMILIES)
    head = ("family", "of", *names)
    outcomes = {method: results.outcomes(method) for method in _IN_FAMILIES}
    order = {Kind.LEAK: 0, Kind.BENIGN: 1, Kind.HARD: 2, Kind.COLLAPSE: 3}
    rows = []
    for name in sorted(FAMILIES, key=lambda name: (order[FAMILIES[name].kind], name)):
        counts = [alarmed(outcomes[method], name) for method in _IN_FAMILIES]
        rows.append([name.replace("_", " "), str(counts[0][1]), *(str(told) for told, _ in counts)])
    return _markdown(head, rows)


def dial() -> list[str]:
    """The sensitivities in words of what may be taken without a word."""
    rows = [
        [
            name,
            f"{100 * ALLOCATOR_SETTINGS[name].unnamed_share:.1f} %",
            f"{100 * SETTINGS[name].unnamed_share:.1f} %, in {SETTINGS[name].even.eighths} of 8 parts of the time",
        ]
        for name in SENSITIVITIES
    ]
    return _markdown(("`leaks.sensitivity`", "with a client", "NVML alone"), rows)


def sizes(results: Results) -> str:
    """How much there was to judge."""
    facts = [one.facts for one in results.verdicts]
    days = sum(fact.leak_free_days for fact in facts if fact.kind in COUNTED)
    lives = [fact for fact in facts if fact.kind is Kind.LEAK]
    full = sum(fact.exhausted_seconds is not None for fact in lives)
    hard, sudden = (sum(fact.kind is kind for fact in facts) for kind in (Kind.HARD, Kind.COLLAPSE))
    return (
        f"{len(facts)} traces: {days:.0f} leak-free process-days, {len(lives)} leaks of which {full} end out of memory;"
        f" apart {hard} hard ones and {sudden} collapses."
    )


def fast_path(results: Results) -> str:
    """What the fast tier saw, in a sentence."""
    found = collapses(results.outcomes(FAST))
    before = "nan" if found.seconds_before is None else f"{found.seconds_before:.0f}"
    return (
        f"The fast path told {found.told} of {found.traces} collapses (all that is free, gone in 6 s to 5 min) before"
        f" the end, {before} s before it (median). In leak-free traces it spoke {_rate(found.words_per_day)} times a"
        " process-day."
    )


def balanced(results: Results) -> Score:
    """The row of the configuration that the agent has by default, where apps tell their allocator's figures."""
    method = DETECTORS[1]
    return score(method.name, method.signal, results.outcomes(method), results.update_seconds(method))


def _row(row: Score) -> list[str]:
    delay = f"{row.delay_minutes[0]:.0f} / {row.delay_minutes[1]:.0f}" if row.delay_minutes else "-"
    forecast = "-"
    if row.forecast:
        median, low, high, within = row.forecast
        forecast = f"{median:.2f} ({low:.2f} to {high:.2f}), {100 * within:.0f} %"
    return [
        row.name,
        row.signal,
        _percent(row.recall),
        f"{_rate(row.false_per_day)}: {row.false} in {row.days:.0f} d",
        f"{row.traces_alarmed} of {row.traces}",
        delay,
        "-" if row.life_share is None else f"{row.life_share:.2f}",
        "-" if row.lead is None else f"{100 * row.lead:.0f}",
        forecast,
        f"{row.update_seconds * 1e6:.1f}",
    ]


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _rate(rate: Interval) -> str:
    def digits(value: float) -> str:
        return f"{value:.4f}" if 0 < value < 0.1 else f"{value:.2f}" if math.isfinite(value) else "-"

    return f"{digits(rate.value)} ({digits(rate.low)} to {digits(rate.high)})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    right = ("|" + " --- |" * min(2, len(head))) + " ---: |" * (len(head) - 2)
    return ["| " + " | ".join(head) + " |", right, *("| " + " | ".join(row) + " |" for row in rows)]

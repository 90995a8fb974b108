"""What loads here loads in Prometheus: `promtool check rules` is the judge."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import RuleFileError
from gpuagent_alerts.shipped import RULES_FILE
from tests.alerts.rules import promtool
from tests.alerts.rules.test_file import GOOD

ODD = (
    "groups:\n- name: 5\n  rules:\n  - {alert: yes, expr: 1, labels: {a: true, b: 1.50, c: 0x10, d: 2020-01-01}}\n",
    "groups:\n- name: g\n  interval:\n  limit: ~\n  rules: null\n",
    "groups:\n- name: &n g\n  rules:\n  - {alert: *n, expr: m, labels: &l {a: b}}\n  - {alert: B, expr: m, labels: *l}",
    "groups:\n- name: g\n  rules:\n  - alert: A b/c ü\n    expr: >-\n      m\n      > 1\n    for: 0\n",
    "groups:\n- name: g\n  interval: 0s\n  rules:\n  - {record: 'a:b', expr: 'vector(1)', labels: {t: '{{ x }}'}}\n",
    "groups:\n- name: g\n  rules:\n  - {alert: A, expr: m, annotations: {__x: '', y: '{{/* c */}}'}, labels: {_: x}}\n",
    "\ufeffgroups: []\n",
    "{groups: [{name: g, rules: [{alert: A, expr: m, for: 1y2w3d4h5m6s7ms}]}]}",
)


@pytest.mark.needs("promtool")
def test_odd_files_load_in_both(tmp_path: Path) -> None:
    """Types that go-yaml takes as text, nulls, aliases, flow style: good here and there."""
    files = []
    for number, text in enumerate((*ODD, GOOD)):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
        load_rule_file(files[-1])
    loads, report = promtool.check_rules(*files)
    assert loads, report


@pytest.mark.needs("promtool")
def test_what_loads_here_loads_in_prometheus(tmp_path: Path) -> None:
    """300 seeded files with something changed, left out or doubled: none that we take is refused there."""
    rnd = random.Random(7)
    sources = [RULES_FILE.read_text(), GOOD, *ODD]
    taken = []
    refused = 0
    for number in range(300):
        path = tmp_path / f"{number}.yaml"
        path.write_text(_changed(rnd, rnd.choice(sources)), encoding="utf-8")
        try:
            load_rule_file(path)
        except RuleFileError:
            refused += 1
        else:
            taken.append(path)
    # Otherwise this would compare nothing.
    assert refused > 50
    assert len(taken) > 50
    loads, report = promtool.check_rules(*taken)
    assert loads, report


def _changed(rnd: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(rnd.choice((1, 1, 2))):
        place = rnd.randrange(len(lines))
        line = lines[place]
        kind = rnd.randrange(6)
        if kind == 0:
            del lines[place]
            lines = lines or ["\n"]
        elif kind == 1:
            lines.insert(place, line)
        elif kind == 2 and len(line) > 1:
            at = rnd.randrange(len(line) - 1)
            lines[place] = line[:at] + rnd.choice("{}[]:,&*#\"'|> -_.5~!%@\t$") + line[at + rnd.choice((0, 1)) :]
        elif kind == 3:
            lines[place] = line.replace("5m", rnd.choice(("5", "0", "1.5m", "5M", "1m5h", "99999y", "")))
        elif kind == 4:
            lines[place] = line.replace("alert", rnd.choice(("record", "alerts", "Alert")))
        else:
            words = ("severity", "__name__", "a-b", "null", "yes", "{{ $x }}", "{{ title }}", "m[5m]", "name")
            lines[place] = line.replace("gpu", rnd.choice(words), 1)
    return "".join(lines)

"""Rule files: what loads, and every fault with its place and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.file import load_rule_file, load_rule_text
from gpuagent_alerts.rules.model import AlertRule, MissingData, RecordRule, RuleFileError

GOOD = """
groups:
  - name: gpus
    interval: 10s
    limit: 5
    rules:
      - record: gpu:used
        expr: sum by (gpu) (m)
        labels: {from: "{{ no template }}"}
      - alert: High
        expr: gpu:used > 0.9
        for: 1m30s
        keep_firing_for: 2m
        labels: {severity: warning, count: 5}
        annotations:
          summary: "GPU {{ $labels.gpu }}"
          gpuagent_missing_data: resolve
  - name: empty
"""


def faults_of(text: str) -> list[str]:
    """Every fault of a text."""
    with pytest.raises(RuleFileError) as caught:
        load_rule_text(text, "r.yaml")
    return str(caught.value).splitlines()


def in_a_rule(lines: str) -> str:
    """A file with one rule that has these lines, from line 4 on."""
    return "groups:\n- name: g\n  rules:\n  - " + lines.strip().replace("\n", "\n    ") + "\n"


def test_a_good_file_is_loaded_whole() -> None:
    """Groups, alerts and recording rules with everything that they can have."""
    gpus, empty = load_rule_text(GOOD)
    assert (gpus.name, gpus.interval_seconds, gpus.limit, gpus.line) == ("gpus", 10.0, 5, 3)
    record, alert = gpus.rules
    assert isinstance(record, RecordRule)
    assert record.labels == {"from": "{{ no template }}"}
    assert isinstance(alert, AlertRule)
    assert (alert.for_seconds, alert.keep_firing_for_seconds) == (90.0, 120.0)
    assert alert.label_texts == {"severity": "warning", "count": "5"}
    assert alert.annotations["summary"].fill({"gpu": "3"}, 1.0) == "GPU 3"
    assert alert.missing_data is MissingData.RESOLVE
    assert (empty.interval_seconds, empty.rules) == (None, ())


@pytest.mark.parametrize("text", ["", "# nothing", "groups:", "groups: []"])
def test_a_file_without_rules_is_no_fault(text: str) -> None:
    """As in Prometheus: a file may be empty."""
    assert load_rule_text(text) == ()


def test_missing_data_is_kept_by_default() -> None:
    """ALERT-06: without the annotation an alert stays as it is while nothing is measured."""
    ((rule,),) = (group.rules for group in load_rule_text(in_a_rule("alert: A\nexpr: m")))
    assert isinstance(rule, AlertRule)
    assert rule.missing_data is MissingData.KEEP


def test_all_faults_are_told_at_once_in_the_order_of_the_file() -> None:
    """Somebody who repairs a file does it once."""
    text = """groups:
- name: g
  intervall: 5s
  rules:
  - alert: A
    expr: rate(m[5m])
    for: 5
  - record: 1st
    expr: m
  - expr: m
- name: g
"""
    faults = faults_of(text)
    assert [fault.split(":")[1] for fault in faults] == ["3", "6", "7", "8", "10", "11"]
    assert faults[0] == 'r.yaml:3: group "g": the key "intervall" is unknown; did you mean interval?'
    assert faults[1].startswith('r.yaml:6: group "g", rule "A": expr: ')


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ("alert: A\nrecord: b\nexpr: m", 5, "either `alert` or `record`"),
        ("expr: m", 4, "needs a name"),
        ("alert: ''\nexpr: m", 4, "needs a name"),
        ("alert: A", 4, "needs an expression"),
        ("alert: A\nexpr: ''", 5, "needs an expression"),
        ("alert: A\nexpr: [m]", 5, "expr must be text, not a list"),
        ("alert: A\nexpr: m >", 5, "expr:"),
        ("alert: A\nexpr: rate(m[5m]) > 0", 5, "rate"),
        ("alert: A\nexpr: m offset 5m", 5, "offset"),
        ("alert: A\nexpr: m\nfor: 1.5h", 6, "for: '1.5h' is no duration"),
        ("alert: A\nexpr: m\nfor: 90", 6, "for: '90' is no duration"),
        ("alert: A\nexpr: m\nkeep_firing_for: -1m", 6, "keep_firing_for: '-1m' is no duration"),
        ("alert: A\nexpr: m\nfor: {a: 1}", 6, "for must be text, not a mapping"),
        ("alert: A\nexpr: m\nlabels: x", 6, "labels must be a mapping"),
        ("alert: A\nexpr: m\nlabels: {a-b: x}", 6, '"a-b" cannot name a label'),
        ("alert: A\nexpr: m\nlabels: {__name__: x}", 6, "__name__ is the name of the series"),
        ("alert: A\nexpr: m\nlabels: {alertname: x}", 6, "alertname is always the name of the alert"),
        ("alert: A\nexpr: m\nlabels: {a: }", 6, '"a" must be text, not nothing'),
        ("alert: A\nexpr: m\nlabels: {a: [1]}", 6, '"a" must be text, not a list'),
        ("alert: A\nexpr: m\nannotations: {a b: x}", 6, '"a b" cannot name an annotation'),
        ("alert: A\nexpr: m\nannotations:\n  s: '{{ title $labels.a }}'", 7, "the function title"),
        ("alert: A\nexpr: m\nlabels: {a: '{{ if }}'}", 6, "label a: {{ if }}"),
        ("alert: A\nexpr: m\nannotations: {gpuagent_missing_data: maybe}", 6, "keep or resolve"),
        ("alert: A\nexpr: m\nalert: B", 6, "alert is given twice: see line 4"),
        ("alert: A\nexpr: m\nexpression: m", 6, '"expression" is unknown'),
        ("record: a b\nexpr: m", 4, '"a b" cannot name a series'),
        ("record: a\nexpr: m\nfor: 5m", 6, "a recording rule has no `for`"),
        ("record: a\nexpr: m\nkeep_firing_for: 5m", 6, "a recording rule has no `keep_firing_for`"),
        ("record: a\nexpr: m\nannotations: {a: b}", 6, "a recording rule has no `annotations`"),
        ("alert: A\nexpr: m\nquery_offset: 5m", 6, "unknown to Prometheus 2.42"),
        ("- x", 4, "item 1 of rules must be a mapping, not a list"),
    ],
)
def test_faults_of_a_rule(lines: str, line: int, words: str) -> None:
    """Each names the file, the line, the group, the rule and what is wrong."""
    (fault,) = faults_of(in_a_rule(lines))
    assert fault.startswith(f'r.yaml:{line}: group "g"')
    assert words in fault


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- groups", 1, "begins with `groups:`"),
        ("groups: 5", 1, "groups must be a list"),
        ("group: []", 1, "did you mean groups?"),
        ("groups:\n- rules: []", 2, "a group has no name"),
        ("groups:\n- {name: g, interval: 5}", 2, "interval: '5' is no duration"),
        ("groups:\n- {name: g, limit: -1}", 2, "limit must be a whole number"),
        ("groups:\n- {name: g, limit: ten}", 2, "limit must be a whole number"),
        ("groups:\n- {name: g, source_tenants: [a]}", 2, "unknown to Prometheus 2.42"),
        ("groups:\n- {name: g, query_offset: 5m}", 2, "unknown to Prometheus 2.42"),
        ("groups:\n- name: g\n- name: g\n", 3, "another group of this name in line 2"),
        ("groups:\n- {name: g, rules: {}}", 2, "rules must be a list, not a mapping"),
        ("groups: [", 1, "not YAML"),
    ],
)
def test_faults_of_a_group(text: str, line: int, words: str) -> None:
    """Likewise, above the rules."""
    (fault,) = faults_of(text)
    assert fault.startswith(f"r.yaml:{line}: ")
    assert words in fault


def test_a_rule_that_is_there_twice_is_a_fault() -> None:
    """The same name with the same labels; with other labels it is another rule."""
    text = "groups:\n- name: g\n  rules:\n" + "".join(
        f"  - {{alert: A, expr: m, labels: {{severity: {severity}}}}}\n" for severity in ("a", "b", "a")
    )
    (fault,) = faults_of(text)
    assert fault.startswith('r.yaml:6: group "g", rule "A": the rule in line 4 has the same name')


@pytest.mark.slow
def test_a_thousand_rules_are_welcome(tmp_path: Path) -> None:
    """A large file costs time, and nothing else."""
    path = tmp_path / "r.yaml"
    rules = "".join(
        f"  - {{alert: A{n}, expr: m{n} > 1, annotations: {{s: '{{{{ $value }}}}'}}}}\n" for n in range(1000)
    )
    path.write_text(f"groups:\n- name: g\n  rules:\n{rules}")
    (group,) = load_rule_file(path)
    assert len(group.rules) == 1000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#" * (1024 * 1024 + 1), "larger than 1 MiB"),
        (b"groups:\n- name: \xff", ":2: is not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes | None, words: str) -> None:
    """Too large, not UTF-8, or not there: one fault."""
    path = tmp_path / "r.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RuleFileError) as caught:
        load_rule_file(path)
    (fault,) = caught.value.faults
    assert words in str(fault)


def test_a_name_from_outside_cannot_spoil_a_terminal() -> None:
    """Faults are short, and free of control characters."""
    (fault,) = faults_of('groups:\n- name: "\\e[31m' + "x" * 500 + '"\n  rules: 1\n')
    assert "\x1b" not in fault
    assert len(fault) < 200


PIECES = (
    "groups:\n", "- name: g\n", "  rules:\n", "  - alert: A\n", "    expr: m\n", "    for: 5m\n", "  - record: r\n",
    "    labels:\n", "      a: b\n", "    annotations: &x {a: '{{ $value }}'}\n", "    labels: *x\n", "  ", "- ", "{",
    "}", "[", "]", ":", "~", "'", "#", "\t", "{{", "é",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=15))
def test_any_text_loads_or_is_refused(pieces: list[str]) -> None:
    """Nothing that anybody writes raises anything else."""
    try:
        loaded = load_rule_text("".join(pieces))
    except RuleFileError as error:
        loaded = ()
        assert error.faults  # noqa: PT017  the error is what is tested
    assert isinstance(loaded, tuple)

"""Labels that no series has are found in any rule, with what was probably meant."""

from __future__ import annotations

import pytest

from gpuagent.config.rules import implausible_rules
from gpuagent_alerts.rules.file import load_rule_text

USED, INFO = "gpuagent_process_memory_used_bytes", "gpuagent_process_info"
RECORDED = """
groups:
- name: g
  rules:
  - {record: "mine:used:max", expr: "max by (gpu, uuid, user) (%s)", labels: {team: ml}}
  - {record: "mine:used:max", expr: 'label_replace(max by (uuid) (%s), "room", "a", "gpu", ".*")'}
  - {record: "mine:foreign", expr: "other_exporter_value"}
  - {alert: A, expr: '%s'}
"""


def notes(expression: str) -> list[str]:
    """The notes on a rule beside recorded series, without file, line and name."""
    groups = load_rule_text(RECORDED % (USED, USED, expression))
    return [note.problem for note in implausible_rules(groups)]


@pytest.mark.parametrize(
    ("expression", "note"),
    [
        (f'{USED}{{usr="ann"}} > 1e9', f'no series of {USED} has a label usr, so that usr="ann" never holds;'),
        (f'{USED}{{usr!="ann"}} > 1e9', 'has a label usr, so that usr!="ann" holds of all of them; did you mean user?'),
        ('gpuagent_gpus{node="a"} > 1', 'no series of gpuagent_gpus has a label node, so that node="a" never holds'),
        (f'{USED}{{instance="a"}} > 1e9', 'instance="a" never holds: Prometheus adds it, and the agent reads its own'),
        (f"sum by (usr) ({USED}) > 1e9", "nothing that `sum by (...)` is about has a label usr; did you mean user?"),
        (
            f"{USED} * on (uuid, pdi) group_left () {INFO} > 1e9",
            "`on (...)` is about has a label pdi; did you mean pid?",
        ),
        (f"{USED} * ignoring (stat) group_left (unti) {INFO} > 1", "`ignoring (...)` is about has a label stat; did"),
        ('mine:used:max{usr="ann"} > 1e9', "no series of mine:used:max has a label usr"),
        ('mine:used:max{pid="7"} > 1e9', "no series of mine:used:max has a label pid"),
    ],
)
def test_a_label_that_no_series_has(expression: str, note: str) -> None:
    """ALERT-06: it is told in every rule, also where it is matched by, grouped by, or taken from another series."""
    assert any(note in found for found in notes(expression))


@pytest.mark.parametrize(
    "expression",
    [
        'mine:used:max{team="ml", room="a", user!="ann"} > 1e9',
        'mine:foreign{any="thing"} > 1 and on (what, ever) mine:used:max > 1e9',
        'label_replace(gpuagent_gpus, "room", "a", "", "") * on (room) group_left () vector(1) > 1',
        'count_values by (gpu) ("size", gpuagent_gpu_memory_total_bytes) > 1 and on (gpu, size) mine:used:max > 1e9',
        f"sum by (job, instance, user) ({USED}) > 1e9",
        f'{{__name__="{USED}", user="ann"}} > 1e9',
        f'{{__name__=~"{USED}|other", usr="ann"}} > 1e9',
        'ALERTS{alertname="B", anything="x"} == 1',
    ],
)
def test_a_label_that_may_be_there(expression: str) -> None:
    """ALERT-06: labels that a rule records, writes or counts by are known, and nothing is said of what is not known."""
    assert notes(expression) == []

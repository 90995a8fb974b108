"""Notes on users, GPUs and budgets that rules leave out, by `user!=` or behind `unless`, and that this machine lacks.

A rule that names a user who is not here accuses nobody. One that spares such a user, by a misspelt name most often,
spares nobody, and that is noticed when somebody has been ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuagent_alerts.promql.syntax import Binary, Node, Selector
from gpuagent_alerts.rules.alert_labels import FAMILY_LABELS, literals
from gpuagent_alerts.rules.label_names import children
from gpuagent_alerts.rules.model import RuleFault, RuleGroup

_POSITIVE = frozenset({"=", "=~"})


def spared_name_notes(
    groups: Iterable[RuleGroup], known: Mapping[str, Callable[[Sequence[str]], Mapping[str, str]]]
) -> Iterator[RuleFault]:
    """Yield a note for each; `known` tells, by label, why nothing has a name. It may ask a directory server."""
    named = [
        (group, rule, *spared)
        for group in groups
        for rule in group.rules
        for spared in dict.fromkeys(_spared(rule.expression.tree))
    ]
    problems = {
        label: look_up([name for _, _, other, name in named if other == label])
        for label, look_up in known.items()
        if any(other == label for _, _, other, _ in named)
    }
    for group, rule, label, name in named:
        if name in problems.get(label, ()):
            text = f'{label} "{name}" is left out, and that spares nobody: {problems[label][name]}'
            yield RuleFault(rule.file, rule.line, text, group.name, rule.name)


def _spared(node: Node, negations: int = 0) -> Iterator[tuple[str, str]]:
    """Yield labels, and the values of them that an expression leaves out; `negations` counts `unless` around it."""
    if isinstance(node, Selector):
        labels = FAMILY_LABELS.get(node.name or "", {})
        for matcher in node.matchers:
            if matcher.name in labels and (matcher.op in _POSITIVE) == bool(negations % 2):
                yield from ((matcher.name, value) for value in literals(matcher) if value)
    unless = isinstance(node, Binary) and node.operator == "unless"
    for place, child in enumerate(children(node)):
        yield from _spared(child, negations + (unless and place == 1))

"""Notes on users whom rules leave out, by `user!=` or behind `unless`, and whom this machine does not know.

A rule that names a user who is not here accuses nobody. One that spares such a user, by a misspelt name most often,
spares nobody, and that is noticed when somebody has been ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuagent_alerts.promql.syntax import Binary, Node, Selector
from gpuagent_alerts.rules.alert_labels import FAMILY_LABELS, literals
from gpuagent_alerts.rules.label_names import children
from gpuagent_alerts.rules.model import RuleFault, RuleGroup

_POSITIVE = frozenset({"=", "=~"})


def spared_user_notes(
    groups: Iterable[RuleGroup], users: Callable[[Iterable[str]], Mapping[str, str]]
) -> Iterator[RuleFault]:
    """Yield a note for each; `users` tells why nobody has a name, and may ask a directory server."""
    named = [
        (group, rule, name)
        for group in groups
        for rule in group.rules
        for name in dict.fromkeys(_spared(rule.expression.tree))
    ]
    problems = users([name for _, _, name in named])
    for group, rule, name in named:
        if name in problems:
            text = f'user "{name}" is left out, and that spares nobody: {problems[name]}'
            yield RuleFault(rule.file, rule.line, text, group.name, rule.name)


def _spared(node: Node, negations: int = 0) -> Iterator[str]:
    """Yield the names of users whose processes an expression leaves out; `negations` counts `unless` around it."""
    if isinstance(node, Selector) and "user" in FAMILY_LABELS.get(node.name or "", ()):
        for matcher in node.matchers:
            if matcher.name == "user" and (matcher.op in _POSITIVE) == bool(negations % 2):
                yield from filter(None, literals(matcher))
    unless = isinstance(node, Binary) and node.operator == "unless"
    for place, child in enumerate(children(node)):
        yield from _spared(child, negations + (unless and place == 1))

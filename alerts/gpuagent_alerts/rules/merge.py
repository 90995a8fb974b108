"""The rules in force: the shipped ones, a user's own, and what was left out by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from gpuagent_alerts.rules.faults import RuleFault, RuleFileError, guess, shown
from gpuagent_alerts.rules.model import RuleGroup


def merge_rules(
    shipped: Sequence[RuleGroup],
    own: Sequence[RuleGroup],
    disabled: Collection[str] = (),
    *,
    config_file: str = "disabled_rules",
) -> tuple[RuleGroup, ...]:
    """Shipped groups first, then the user's own, as they are.

    A rule of the user's replaces every shipped one of the same name; `disabled` leaves shipped ones out. Raises
    RuleFileError, with `config_file` as the place, where a disabled name is no shipped rule's: a misspelt name would
    leave its rule in force in silence.
    """
    shipped_names, own_names = _names(shipped), _names(own)
    faults = [
        _no_such_rule(name, shipped_names, own_names, config_file) for name in disabled if name not in shipped_names
    ]
    if faults:
        raise RuleFileError(faults)
    out = own_names | set(disabled)
    kept = (
        dataclasses.replace(group, rules=tuple(rule for rule in group.rules if rule.name not in out))
        for group in shipped
    )
    return (*(group for group in kept if group.rules), *own)


def _names(groups: Iterable[RuleGroup]) -> set[str]:
    return {rule.name for group in groups for rule in group.rules}


def _no_such_rule(name: str, shipped: set[str], own: set[str], config_file: str) -> RuleFault:
    key = "" if config_file == "disabled_rules" else "disabled_rules: "
    if name in own:
        return RuleFault(config_file, 0, f"{key}{shown(name)} is a rule of your own files", remedy="remove it there")
    return RuleFault(
        config_file, 0, f"{key}no shipped rule is named {shown(name)}", remedy=guess(name, sorted(shipped))
    )

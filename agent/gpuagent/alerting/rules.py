"""The rules in force, by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.alerting.links import with_runbooks
from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.remedies.grounds import Grounds, grounds_of_rule
from gpuagent_alerts.rules.faults import RuleFault, RuleFileError
from gpuagent_alerts.rules.file import load_rule_file, read_rule_file
from gpuagent_alerts.rules.merge import merge_rules
from gpuagent_alerts.rules.model import AlertRule, RuleGroup
from gpuagent_alerts.rules.unknown import find_unknown_metrics
from gpuagent_alerts.shipped import RULES_FILE

if TYPE_CHECKING:
    from gpuagent.config.models import Config


def load_rules(config: Config, *, read: Callable[[Path], bytes] = read_rule_file) -> tuple[RuleGroup, ...]:
    """Return the shipped rules and those of the configured files, whose content `read` returns.

    Raises:
        RuleFileError: with every fault of every file.
    """
    faults: list[RuleFault] = []
    own: list[RuleGroup] = []
    for path in config.rule_files:
        try:
            own += load_rule_file(path, read=read)
        except RuleFileError as error:
            faults += error.faults
    merged: tuple[RuleGroup, ...] = ()
    try:
        merged = merge_rules(load_rule_file(RULES_FILE), own, config.disabled_rules)
    except RuleFileError as error:
        faults += error.faults
    if faults:
        raise RuleFileError(faults)
    return with_runbooks(merged, config.links.runbook)


def unknown_metrics(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """A note for each rule that looks at a series which this agent never has: a slip of the pen, most often."""
    return find_unknown_metrics(groups, {family.name for family in FAMILIES})


def judge_rules(groups: Sequence[RuleGroup]) -> list[tuple[AlertRule, Grounds]]:
    """Return every alert rule with the grounds that it gives remedies."""
    rules = (rule for group in groups for rule in group.rules)
    return [(rule, grounds_of_rule(rule)) for rule in rules if isinstance(rule, AlertRule)]


def rules_without_grounds(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """Return a note for each alert rule of which no ladder makes a reason to disrupt a process. It alerts as usual.

    Rules that read what the agent does not have are left out: `unknown_metrics` tells of them.
    """
    unknown = {(note.file, note.line) for note in unknown_metrics(groups)}
    return [
        RuleFault(rule.file, rule.line, f"no reason to act: {grounds.refusal}", group.name, rule.name)
        for group in groups
        for rule, grounds in judge_rules([group])
        if grounds.refusal and (rule.file, rule.line) not in unknown
    ]

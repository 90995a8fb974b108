"""The rules in force, by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.catalogue import FAMILIES
from gpuagent_alerts.rules.faults import RuleFault, RuleFileError
from gpuagent_alerts.rules.file import load_rule_file, read_rule_file
from gpuagent_alerts.rules.merge import merge_rules
from gpuagent_alerts.rules.model import RuleGroup
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
    return merged


def unknown_metrics(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """A note for each rule that looks at a series which this agent never has: a slip of the pen, most often."""
    return find_unknown_metrics(groups, {family.name for family in FAMILIES})

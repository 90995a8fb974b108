"""The rules in force, by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.regular_files import read_regular_file
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis, analyze_rule
from gpuagent_alerts.rules.alert_labels import (
    Labels,
    excludes_by_unknown,
    labels_of_rules,
    series_labels,
    unknown_label_text,
)
from gpuagent_alerts.rules.expression_notes import condition_notes, unknown_matchers, unknown_modifiers
from gpuagent_alerts.rules.file import find_unknown_metrics, load_rule_file, merge_rules
from gpuagent_alerts.rules.model import AlertRule, Rule, RuleFault, RuleFileError, RuleGroup
from gpuagent_alerts.rules.plausibility import implausible_comparisons
from gpuagent_alerts.rules.template import Template
from gpuagent_alerts.shipped import RULES_FILE, RUNBOOK_ANNOTATION, RUNBOOKS_URL

if TYPE_CHECKING:
    from gpuagent.config.models import Config

_WHOM_TO_SPARE = (
    "match looks at the labels of the alert, not at the process: spare users, units and containers by leaving them out"
    " of remedies.allow, and programs by remedies.never"
)


def load_rules(config: Config, *, read: Callable[[Path], bytes] = read_regular_file) -> tuple[RuleGroup, ...]:
    """Return the shipped rules and those of the configured files, whose content `read` returns.

    Raises:
        RuleFileError: with every fault of every file; where these have none, with matchers of ladders that exclude
            alerts by a label that they cannot have.
    """
    faults: list[RuleFault] = []
    own: list[RuleGroup] = []
    for number, path in enumerate(config.rule_files):
        try:
            own += load_rule_file(path, read=read)
        except RuleFileError as error:  # one without a line is of the file as a whole: told where that is named
            named = f"rule_files[{number}]: {path}"
            faults += [fault if fault.line else replace(fault, file=named) for fault in error.faults]
    merged: tuple[RuleGroup, ...] = ()
    try:
        merged = merge_rules(load_rule_file(RULES_FILE), own, config.disabled_rules)
    except RuleFileError as error:
        faults += error.faults
    faults = faults or list(_of_ladders(config, merged))
    if faults:
        raise RuleFileError(faults)
    return with_runbooks(merged, config.links.runbook)


def _of_ladders(config: Config, groups: Sequence[RuleGroup]) -> Iterator[RuleFault]:
    """Yield a fault for each matcher that leaves out nobody, as no alert of its ladder can have the label."""
    ladders = config.remedies.ladders
    alerts = labels_of_rules(groups, [budget.label for budget in config.budgets]) if ladders else []
    for number, ladder in enumerate(ladders):
        matched = [alert for alert in alerts if alert.can_match(ladder.match)]
        for place, matcher in enumerate(ladder.match):
            if matched and matcher.value and excludes_by_unknown(matcher, matched):
                yield RuleFault(
                    f"remedies.ladders[{number}].match[{place}]",
                    0,
                    f"{matcher} leaves out nobody: {unknown_label_text(matcher.name, matched)}",
                    remedy=_WHOM_TO_SPARE,
                )


def unknown_metrics(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """Return a note for each rule that looks at a series which this agent never has: most often a misspelling."""
    return find_unknown_metrics(groups, {family.name for family in FAMILIES})


def implausible_rules(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """Return a note for each part of a rule that means something else than it says.

    These are comparisons that no figure can meet or that mean another unit, labels that no series has, and conditions
    that are combined otherwise than they look.
    """
    known = series_labels(rule for group in groups for rule in group.rules)
    return [
        RuleFault(rule.file, rule.line, note, group.name, rule.name)
        for group in groups
        for rule in group.rules
        for note in _mistakes(rule, known)
    ]


def _mistakes(rule: Rule, known: Mapping[str, Labels | None]) -> Iterator[str]:
    yield from unknown_matchers(rule.expression.tree, known)
    yield from unknown_modifiers(rule.expression.tree, known)
    yield from implausible_comparisons(rule.expression)
    yield from condition_notes(rule.expression)


def judge_rules(groups: Sequence[RuleGroup]) -> list[tuple[AlertRule, RuleAnalysis]]:
    """Return every alert rule with its analysis for remedies."""
    rules = (rule for group in groups for rule in group.rules)
    return [(rule, analyze_rule(rule)) for rule in rules if isinstance(rule, AlertRule)]


def rules_without_grounds(groups: Sequence[RuleGroup]) -> list[RuleFault]:
    """Return a note for each alert rule of which no ladder makes a reason to disrupt a process. It alerts as usual.

    Rules that read what the agent does not have are left out, and those of which `implausible_rules` tells the reason.
    """
    unknown = {(note.file, note.line) for note in unknown_metrics(groups)}
    told: dict[tuple[str, int], list[str]] = {}
    for note in implausible_rules(groups):
        told.setdefault((note.file, note.line), []).append(note.problem)
    return [
        RuleFault(rule.file, rule.line, f"no reason to act: {analysis.refusal}", group.name, rule.name)
        for group in groups
        for rule, analysis in judge_rules([group])
        if analysis.refusal
        and (rule.file, rule.line) not in unknown
        and not _is_told(analysis.refusal, told.get((rule.file, rule.line), ()))
    ]


def _is_told(refusal: str, told: Iterable[str]) -> bool:
    """Return whether a refusal says nothing beside these texts."""
    for text in told:
        refusal = refusal.replace(text, "")
    return not refusal.strip("; ")


def with_runbooks(groups: Iterable[RuleGroup], base: str | None) -> tuple[RuleGroup, ...]:
    """Return the groups with the shipped runbooks' address replaced by `base`; None leaves them as they are."""
    if base is None:
        return tuple(groups)
    folder = base if base.endswith("/") else f"{base}/"
    return tuple(replace(group, rules=tuple(_with_runbook(rule, folder) for rule in group.rules)) for group in groups)


def _with_runbook(rule: Rule, base: str) -> Rule:
    found = rule.annotations.get(RUNBOOK_ANNOTATION) if isinstance(rule, AlertRule) else None
    if not isinstance(rule, AlertRule) or found is None or not found.text.startswith(RUNBOOKS_URL):
        return rule
    url = base + found.text.removeprefix(RUNBOOKS_URL)
    return replace(rule, annotations={**rule.annotations, RUNBOOK_ANNOTATION: Template(url, (url,))})


def with_external_url(groups: Iterable[RuleGroup], page: str) -> tuple[RuleGroup, ...]:
    """Return the groups with the address of the agent's page in place of `{{ externalURL }}`."""
    url = page.rstrip("/")  # as Prometheus has its own: https://prometheus.example.org
    return tuple(
        replace(group, rules=tuple(_at(rule, url) if isinstance(rule, AlertRule) else rule for rule in group.rules))
        for group in groups
    )


def _at(rule: AlertRule, url: str) -> AlertRule:
    labels = {name: template.with_external_url(url) for name, template in rule.labels.items()}
    annotations = {name: template.with_external_url(url) for name, template in rule.annotations.items()}
    return replace(rule, labels=labels, annotations=annotations)

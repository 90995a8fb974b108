"""Notes on ladders and budgets that can never act, or not as they look: no faults, for rules and nodes differ.

What is a mistake whatever the node is a fault of the configuration (`gpuagent.config`). Here the configuration is held
against the loaded rules: a ladder that waits in vain is noticed on the day on which it was needed. A ladder's matchers
look at the labels of the alert, which can be known before it fires, never at the process that is chosen because of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from gpuagent.config.remedy_settings import step_of
from gpuagent.config_notes.spared_names import form_notes
from gpuagent.config_notes.user_database import existing_users, user_problems
from gpuagent_alerts.remedies.facts.never_entries import interpreter_entries, unbounded_patterns
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import JOB_DAEMONS, NEVER_UNITS, SHARED_UNITS, is_pattern
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis, Subject, analyze_rule
from gpuagent_alerts.remedies.safeguards.rule_sampling import PROCESS_LABELS
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.rules.alert_labels import AlertLabels, excludes_by_unknown, labels_of_rules, matcher_note
from gpuagent_alerts.rules.model import RuleGroup, suggest

if TYPE_CHECKING:
    from gpuagent.config.models import Config
    from gpuagent.config.remedies import Allow, Ladder
    from gpuagent.core.matchers import Matcher


Users = Callable[[Iterable[str]], Mapping[str, str]]
"""Why nobody has a name here, of those of which nobody has."""
Accounts = Callable[[Iterable[str]], frozenset[str]]
"""Which of these names belong to a user of this machine."""
_OF_VICTIMS = PROCESS_LABELS | {"pid"}
_MOST_NAMED = 3
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def never_acts(
    config: Config, groups: Iterable[RuleGroup], users: Users = user_problems, accounts: Accounts = existing_users
) -> list[str]:
    """Return a note for each thing in budgets and ladders that these rules, or this node, leave without effect.

    `users` and `accounts` may ask a directory server: not for the event loop.
    """
    remedies = config.remedies
    alerts = known_alerts(groups, [budget.label for budget in config.budgets])
    notes = list(_of_users(config, users))
    if remedies.ladders:
        notes += _of_allow(config)
        notes += _of_named_users(config.remedies.never, accounts)
    of_rules: list[str] = []
    for index, (ladder, reach) in enumerate(zip(remedies.ladders, reaches(remedies.ladders, alerts), strict=True)):
        path = f"remedies.ladders[{index}]"
        notes += [f"{path}{note}" for note in _of_ladder(ladder, reach, alerts, config)]
        of_rules += _without_grounds(ladder, reach)
    return list(dict.fromkeys((*notes, *of_rules)))


def may_end_nobody(config: Config, never: Iterable[str]) -> list[str]:
    """Return a note for each ladder whose last step a process may ignore; none of those in `never`, which never act."""
    found, never = [], tuple(never)
    for index, ladder in enumerate(config.remedies.ladders):
        path = f"remedies.ladders[{index}]"
        disrupting = [step for step in map(step_of, ladder.steps) if step.disrupts]
        acts = not any(note.startswith(path) for note in never)  # otherwise it is no matter how it ends
        if acts and disrupting and disrupting[-1].kind is StepKind.TERMINATE:
            found.append(
                f"{path}.steps: ends with terminate, which a process may ignore: then nothing more is done, and the"
                " result is no_effect; a kill step behind it ends the process"
            )
    return found


def _of_users(config: Config, users: Users) -> Iterator[str]:
    names = [(f"budgets[{i}].match.user", budget.match.user) for i, budget in enumerate(config.budgets)]
    names += [(f"remedies.allow.users[{i}]", name) for i, name in enumerate(config.remedies.allow.users)]
    problems = users([name for _, name in names if name])
    for path, name in names:
        if name and name in problems:
            yield f"{path}: {problems[name]}"


def _of_allow(config: Config) -> Iterator[str]:
    remedies = config.remedies
    allow, limits = remedies.allow, remedies.limits
    if not (allow.users or _units(allow) or allow.containers):
        yield "remedies.allow: names no user, unit or container: every ladder is refused, in a dry run as well"
    if _units(allow) and allow.containers:
        yield (
            "remedies.allow: units and containers stand side by side, and all that is given must hold: only podman runs"
            " containers in a unit"
        )
    for name in ("per_hour", "per_day"):
        if getattr(limits, name) == 0:
            yield f"remedies.limits.{name}: is 0: rules take no step beyond release_cache, not even in a dry run"
    if limits.unit_per_hour == 0:
        yield "remedies.limits.unit_per_hour: is 0: rules take no step beyond release_cache for what runs in a unit"
    yield from _of_never(config)


def _of_never(config: Config) -> Iterator[str]:
    """Yield a note for each entry of the never-list that spares more than a program, or what is allowed."""
    remedies = config.remedies
    if "*" in remedies.never:
        yield "remedies.never: has *, which is every program: every ladder is refused"
    for index, entry, target, environment in interpreter_entries(remedies.never):
        path = f"remedies.never[{index}]: {entry}"
        if environment:
            yield (
                f"{path} is the interpreter of a virtual environment: processes that run {target} and were started by"
                " their name alone are spared too"
            )
        else:
            leads = f" leads to {target}, which" if target not in {"", entry} else ""
            yield f"{path}{leads} is an interpreter: all that it runs is spared"
    for index, entry in enumerate(remedies.never):
        if "/" in entry and any(each.isspace() for each in entry) and not (is_pattern(entry) or Path(entry).exists()):
            yield (
                f"remedies.never[{index}]: there is no file {entry}: an entry is compared with paths, not with command"
                f" lines; write {entry.split()[0]}"
            )
    for index, note in form_notes(remedies.never, _is_program):
        yield f"remedies.never[{index}]: {note}"
    for index, entry, why in unbounded_patterns(remedies.never):
        yield f"remedies.never[{index}]: {entry} cannot be looked up, so every ladder is refused: {why}"
    yield from _of_units(config)


def _of_units(config: Config) -> Iterator[str]:
    """Yield a note for each unit that is allowed and never restarted."""
    remedies = config.remedies
    shared = len(remedies.allow.units)
    for index, unit in enumerate(_units(remedies.allow)):
        place = f"units[{index}]" if index < shared else f"shared_units[{index - shared}]"
        permission = UnitPermission(index >= shared, (*NEVER_UNITS, *remedies.never), known_shared=SHARED_UNITS)
        if refusal := permission.against([unit]):
            yield f"remedies.allow.{place}: {refusal}"


def _of_named_users(never: Sequence[str], accounts: Accounts) -> Iterator[str]:
    """Yield a note for each entry of the never-list that names a user of this machine, and no program that is found."""
    names = [entry for entry in never if not set(entry) & set("/*") and not _is_program(entry)]
    found = accounts(names)
    for index, entry in enumerate(never):
        if entry in found:
            yield (
                f"remedies.never[{index}]: {entry} is a user of this machine, and never names programs: users are"
                " spared by leaving them out of remedies.allow.users"
            )


def _is_program(name: str) -> bool:
    return which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS))) is not None


def _of_ladder(ladder: Ladder, reach: ReachableAlerts, alerts: list[KnownAlert], config: Config) -> Iterator[str]:
    if not reach.matched:
        yield f".match: {_why_unmatched(ladder, alerts, config)}"
        return
    if not reach.gets:
        before = " and ".join(f"ladders[{index}]" for index in reach.taken_by)
        yield f": is never reached: {before} before it matches all that it could, and the first that matches is taken"
        return
    yield from _of_matchers(ladder, reach, config)
    yield from _of_exclusions(ladder, alerts, config)
    yield from _of_victim(ladder, reach)
    yield from _of_steps(ladder, reach, config)


def _why_unmatched(ladder: Ladder, alerts: list[KnownAlert], config: Config) -> str:
    by_name = [matcher for matcher in ladder.match if matcher.name == "alertname"]
    named = [alert for alert in alerts if alert.can_match(by_name)]
    if not named:
        return _no_such_rule(by_name, alerts, config)
    for matcher in ladder.match:
        about = [other for other in ladder.match if other.name == matcher.name]
        if any(alert.can_match(about) for alert in named):
            continue
        if not any(alert.has(matcher.name) for alert in named) and matcher.name != "budget":
            return _no_such_label(matcher, named)
        if matcher.name == "budget" and matcher.op == "=":
            return _no_such_budget(matcher, config)
        return f"{matcher} holds of no alert of {_names(named)}"
    return "no rule has alerts of which all of these hold"


def _no_such_rule(matchers: list[Matcher], alerts: list[KnownAlert], config: Config) -> str:
    for matcher in matchers:
        if matcher.value in config.disabled_rules:
            return f"{matcher.value} is among disabled_rules: there is no such alert"
        if matcher.op == "=":
            near = suggest(matcher.value, {alert.name for alert in alerts})
            return f"there is no rule {matcher.value}{near and f'; {near}'}"
    return f"no rule has a name of which {' and '.join(map(str, matchers))} holds"


def _no_such_label(matcher: Matcher, alerts: list[KnownAlert]) -> str:
    near = suggest(matcher.name, frozenset[str]().union(*(alert.names for alert in alerts)))
    return (
        f"{matcher} never holds: {_names(alerts)} has no label {matcher.name}{near and f' ({near})'}, and match looks"
        f" at the labels of the alert, not at the process{_instead(matcher)}"
    )


def _instead(matcher: Matcher) -> str:
    by_label = {"user": "users", "unit": "units", "container_id": "containers"}
    key = by_label.get(matcher.name)
    return f": remedies.allow.{key} says whose processes are meant" if key else ""


def _no_such_budget(matcher: Matcher, config: Config) -> str:
    if not config.budgets:
        return f"{matcher} never holds: there are no budgets"
    near = suggest(matcher.value, [budget.label for budget in config.budgets])
    return f"there is no budget {matcher.value}{near and f'; {near}'}"


def _of_matchers(ladder: Ladder, reach: ReachableAlerts, config: Config) -> Iterator[str]:
    allow = config.remedies.allow
    for index, matcher in enumerate(ladder.match):
        without = [alert for alert in reach.gets if alert.labels is not None and matcher.name not in alert.names]
        if matcher.value and 0 < len(without) < len(reach.gets) and excludes_by_unknown(matcher, without):
            yield f".match[{index}]: {matcher} holds of every alert of {_names(without)}: no label {matcher.name} there"
        elif matcher.name in _OF_VICTIMS and not any(alert.has(matcher.name) for alert in reach.gets):
            yield (
                f".match[{index}]: {matcher} holds of every alert: {_names(reach.gets)} has no label {matcher.name},"
                f" and match looks at the labels of the alert, not at the process{_instead(matcher)}"
            )
    for label, names, key in (("user", allow.users, "users"), ("unit", _units(allow), "units")):
        values = [alert.narrowed(label, ladder.match) if alert.has(label) else None for alert in reach.gets]
        if names and all(value is not None and not value & set(names) for value in values):
            wanted = " or ".join(sorted(f'{label}="{name}"' for value in values for name in value or ()))
            yield f".match: asks for {wanted}, and remedies.allow.{key} does not: nobody is acted on"


def _of_exclusions(ladder: Ladder, alerts: list[KnownAlert], config: Config) -> Iterator[str]:
    """Yield a note for each matcher that excludes what no alert has, such as a rule or a budget that is misspelt."""
    for index, matcher in enumerate(ladder.match):
        if matcher.op in {"!=", "!~"} and (note := matcher_note(matcher, alerts, config.disabled_rules)):
            yield f".match[{index}]: {matcher} leaves out nobody: {note}"


def _of_victim(ladder: Ladder, reach: ReachableAlerts) -> Iterator[str]:
    founded = [alert for alert in reach.gets if not alert.analysis.refusal]
    nobodys = [alert for alert in founded if alert.analysis.subject is Subject.GPU]
    by_name = any(matcher.name == "alertname" for matcher in ladder.match)
    if ladder.victim is None and nobodys and (by_name or nobodys == founded):
        yield f": {_names(nobodys)} names a GPU and no process, and without victim nobody is chosen"
    if all(_reads_budgets(alert) and not alert.budgets for alert in reach.gets):
        yield f": {_names(reach.gets)} never fires: there are no budgets"


def _of_steps(ladder: Ladder, reach: ReachableAlerts, config: Config) -> Iterator[str]:
    remedies = config.remedies
    allow, steps = remedies.allow, [step_of(step) for step in ladder.steps]
    disrupting = [step for step in steps if step.disrupts]
    signals = list(dict.fromkeys(_name_of(step) for step in disrupting if step.signal_may_end))
    if signals and set(_units(allow)) - JOB_DAEMONS and not allow.containers:
        yield (
            ".steps: what remedies.allow.units permits is supervised by systemd, and gets no"
            f" {' or '.join(signals)} (but in containers of podman): use restart_unit"
        )
    for index, step in enumerate(steps):
        if any("{container_id}" in argument for argument in step.command) and not (allow.containers or _units(allow)):
            yield f".steps[{index}].exec: needs {{container_id}}, and remedies.allow.containers permits no container"
    if disrupting:
        told = [alert.narrowed("evidence", ladder.match) for alert in reach.gets if alert.has("evidence")]
        if len(told) == len(reach.gets) and all(v is not None and not v & {*remedies.evidence, ""} for v in told):
            wanted = " or ".join(remedies.evidence)
            yield f".match: asks for evidence with which no step beyond release_cache is taken: that needs {wanted}"


def _without_grounds(ladder: Ladder, reach: ReachableAlerts) -> Iterator[str]:
    """Yield a note for each rule that gets this ladder and is never a reason to disrupt a process."""
    if not any(step_of(step).disrupts for step in ladder.steps):
        return
    for alert in reach.gets:
        rule, refusal = alert.rule, alert.analysis.refusal
        if refusal and _is_meant(ladder, alert):
            yield f"rule {rule.name} ({rule.file}:{rule.line}): no ladder disrupts a process because of it: {refusal}"


def _is_meant(ladder: Ladder, alert: KnownAlert) -> bool:
    """Return whether a matcher says something of what is known of the rule: a label may be there or not."""
    return any(alert.values(matcher.name) is not None for matcher in ladder.match)


def _name_of(step: RemedyStep) -> str:
    """Return a step that sends a signal as the configuration names it."""
    return str(step) if step.kind is StepKind.SIGNAL else str(step.kind)


def _reads_budgets(alert: KnownAlert) -> bool:
    return any(name.startswith("gpuagent_budget_") for name in alert.rule.expression.metric_names)


def _units(allow: Allow) -> tuple[str, ...]:
    return (*allow.units, *allow.shared_units)


def _names(alerts: Iterable[KnownAlert]) -> str:
    names = list(dict.fromkeys(alert.name for alert in alerts))
    more = f" and {len(names) - _MOST_NAMED} others" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


class KnownAlert(AlertLabels):
    """The alerts of one rule: their labels, and whether they are a reason to act."""

    def __init__(self, alert: AlertLabels, budgets: frozenset[str]) -> None:
        super().__init__(alert.rule, alert.labels)
        self.budgets = budgets

    @cached_property
    def analysis(self) -> RuleAnalysis:
        """Whether it is a reason to act; only rules that a ladder gets are asked, for it takes some milliseconds."""
        return analyze_rule(self.rule)


def known_alerts(groups: Iterable[RuleGroup], budgets: Iterable[str]) -> list[KnownAlert]:
    """Return what is known of the alerts of all rules."""
    names = frozenset(budgets)
    return [KnownAlert(alert, names) for alert in labels_of_rules(groups, names)]


@dataclass(frozen=True, slots=True)
class ReachableAlerts:
    """Which alerts a ladder can get."""

    matched: tuple[KnownAlert, ...]
    """Its matchers may hold of these."""
    gets: tuple[KnownAlert, ...]
    """Those of them of which no ladder before it takes every one."""
    taken_by: tuple[int, ...]
    """Ladders before it that take what it matches."""


def reaches(ladders: Sequence[Ladder], alerts: Sequence[KnownAlert]) -> Iterator[ReachableAlerts]:
    """Yield the reach of each ladder: the first one that matches an alert is taken."""
    for index, ladder in enumerate(ladders):
        matched = [alert for alert in alerts if alert.can_match(ladder.match)]
        takers: Mapping[int, int | None] = {
            id(alert): next((i for i in range(index) if alert.is_taken_by(ladders[i].match, ladder.match)), None)
            for alert in matched
        }
        gets = tuple(alert for alert in matched if takers[id(alert)] is None)
        taken_by = sorted({taker for taker in takers.values() if taker is not None})
        yield ReachableAlerts(tuple(matched), gets, tuple(taken_by))

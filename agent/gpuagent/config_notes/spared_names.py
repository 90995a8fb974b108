"""Notes on names that are meant to spare somebody and spare nobody: on the never-list, in rules and in ladders.

An entry of the never-list may be the name of something else than a program. What rules and ladders leave out, by
`user!=` or behind `unless`, may be missing on this machine.

A rule that names a user who is not here accuses nobody. One that spares such a user, by a misspelt name most often,
spares nobody, and that is noticed when somebody has been ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuagent.core.identity import COMM_BYTES
from gpuagent.core.matchers import Matcher, Matchers, MatchOperator
from gpuagent_alerts.promql.syntax import Binary, Node, Selector
from gpuagent_alerts.rules.alert_labels import FAMILY_LABELS, AlertLabels, known_values, literals, matcher_note
from gpuagent_alerts.rules.expression_notes import children
from gpuagent_alerts.rules.model import RuleFault, RuleGroup, suggest

if TYPE_CHECKING:
    from gpuagent.config.models import Config

_ALLOW = "are spared by leaving them out of remedies.allow"


class _Form(NamedTuple):
    pattern: re.Pattern[str]
    text: str
    """What it is, and what to write."""


_FORMS = (
    _Form(
        re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*"),
        f"is an address, and no name or path of a program: containers and images {_ALLOW}.containers; for a program"
        " write its name, or its path from / on",
    ),
    _Form(
        re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]*", re.IGNORECASE),
        f"is a GPU, and never names programs: GPUs {_ALLOW}.gpus",
    ),
    _Form(
        re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE),
        f"is a PCI address, and never names programs: GPUs {_ALLOW}.gpus",
    ),
    _Form(
        re.compile(r"[0-9]{1,10}"),
        "is a number, and is compared with names of programs, not with pids, uids or jobs: write the name of the"
        " program, and leave users and jobs out of remedies.allow",
    ),
    _Form(
        re.compile(r"(?=.*[0-9])([0-9a-f]{12}|[0-9a-f]{64})"),
        f"looks like the id of a container, and never names programs: containers {_ALLOW}.containers",
    ),
)


def form_notes(entries: Iterable[str], is_program: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each note; `is_program` says whether a program of that name is found here."""
    for index, entry in enumerate(entries):
        form = next((each for each in _FORMS if each.pattern.fullmatch(entry)), None)
        if form is not None and not is_program(entry):
            yield index, f"{entry} {form.text}"
        elif not {"[", "?"}.isdisjoint(entry) and not is_program(entry) and not Path(entry).exists():
            yield index, f"{entry}: [ and ? mean themselves here, and * alone stands for any text: {_with_stars(entry)}"
        elif "/" in entry and "**" in entry:
            yield index, f"{entry}: * means any text here, slashes too, so that ** is no more: write {_one_star(entry)}"


def _with_stars(entry: str) -> str:
    """Return what a shell's pattern is written as; it may mean more."""
    stars = re.sub(r"[*?]+", "*", re.sub(r"\[[^]]*\]", "*", entry))
    return f"write {stars}, if it is meant as a shell's pattern"


def _one_star(entry: str) -> str:
    """Return what is meant by a shell's `**`, which stands for no directory at all as well."""
    single = re.sub(r"\*{2,}", "*", entry)
    if "/**/" not in entry:
        return single
    return f"{single} and, for what lies in the directory itself, {re.sub(r'/[*]{2,}/', '/', entry)}"


_POSITIVE = frozenset({MatchOperator.EQUAL, MatchOperator.MATCHES})
_OF_THE_MACHINE = frozenset({"user", "uuid", "gpu", "process"})
"""Labels that mean the same on every alert which has them, unless a rule writes them itself."""
_MOST_SHOWN = 3


class KnownNames(NamedTuple):
    """What is known of the values of labels on this machine."""

    lookups: Mapping[str, Callable[[Sequence[str]], Mapping[str, str]]]
    """By label, what tells why nothing has a name. It may ask a directory server."""
    present: Mapping[str, frozenset[str]]
    """By label, every value that there is; none, or an empty set, where that is not known."""

    def problems(self, matchers: Iterable[Matcher]) -> dict[Matcher, dict[str, str]]:
        """Return, for matchers that leave something out, by the text of what is not there, why that is so."""
        wanted = list(dict.fromkeys(matchers))
        names = {
            label: [name for each in wanted if each.name == label for name in _literals(each)] for label in self.lookups
        }
        unknown = {label: self.lookups[label](found) for label, found in names.items() if found}
        return {each: dict(self._of(each, unknown.get(each.name, {}))) for each in wanted}

    def _of(self, matcher: Matcher, unknown: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from ((name, unknown[name]) for name in _literals(matcher) if name in unknown)
        values = self.present.get(matcher.name, frozenset())
        if matcher.name in self.lookups or not values:
            yield from _cut_names(matcher)
        elif not any(Matchers([_positive(matcher)])({matcher.name: each}) for each in (*values, "")):
            near = suggest(matcher.value, values)
            yield (
                matcher.value,
                f"no GPU of this machine has that {matcher.name}, but {_some(values)}{near and f'; {near}'}",
            )


def spared_name_notes(groups: Iterable[RuleGroup], known: KnownNames) -> Iterator[RuleFault]:
    """Yield a note for each name that a rule leaves out in vain. It may ask a directory server."""
    named = [
        (group, rule, metric, matcher)
        for group in groups
        for rule in group.rules
        for metric, matcher in dict.fromkeys(_spared(rule.expression.tree))
    ]
    problems = known.problems(matcher for *_, matcher in named)
    for group, rule, metric, matcher in named:
        for name, why in (*problems[matcher].items(), *_never_so(metric, matcher)):
            text = f'{matcher.name} "{name}" is left out, and that spares nobody: {why}'
            yield RuleFault(rule.file, rule.line, text, group.name, rule.name)


def spared_by_ladders(config: Config, alerts: Sequence[AlertLabels], known: KnownNames) -> Iterator[str]:
    """Yield a note for each matcher of a ladder that leaves out in vain; what no alert can have is told elsewhere."""
    negative = [
        (f"remedies.ladders[{index}].match[{place}]", matcher)
        for index, ladder in enumerate(config.remedies.ladders)
        for place, matcher in enumerate(ladder.match)
        if matcher.op not in _POSITIVE and matcher.name in _OF_THE_MACHINE
        if known_values(matcher.name, alerts) is None and not matcher_note(matcher, alerts, config.disabled_rules)
    ]
    problems = known.problems(matcher for _, matcher in negative)
    for path, matcher in negative:
        if why := "; ".join(problems[matcher].values()):
            yield f"{path}: {matcher} leaves out nobody: {why}"


def _literals(matcher: Matcher) -> list[str]:
    return [value for value in literals(matcher) if value]


def _positive(matcher: Matcher) -> Matcher:
    return matcher._replace(op=MatchOperator.MATCHES if matcher.op.is_pattern else MatchOperator.EQUAL)


def _some(values: Collection[str]) -> str:
    shown = sorted(values)[:_MOST_SHOWN]
    more = f" or {len(values) - len(shown)} others" if len(values) > len(shown) else ""
    return f"{', '.join(shown)}{more}"


def _cut_names(matcher: Matcher) -> Iterator[tuple[str, str]]:
    """Yield names of processes that are longer than any that the kernel keeps."""
    if matcher.name != "process":
        return
    for name in _literals(matcher):
        kept = name.encode("utf-8", "surrogateescape")[:COMM_BYTES].decode("utf-8", "ignore")
        if kept != name:
            yield name, f"the kernel keeps {COMM_BYTES} bytes of a name; write {kept}"


def _never_so(metric: str, matcher: Matcher) -> Iterator[tuple[str, str]]:
    """Yield what a label of a fixed set of values never is."""
    values = FAMILY_LABELS.get(metric, {}).get(matcher.name)
    for name in _literals(matcher) if values is not None else ():
        if values is not None and name not in values:
            near = suggest(name, values)
            yield name, near or f"{matcher.name} is never so"


def _spared(node: Node, negations: int = 0) -> Iterator[tuple[str, Matcher]]:
    """Yield a metric, and a matcher of it that leaves out; `negations` counts `unless` around it."""
    if isinstance(node, Selector):
        name = node.name or ""
        labels = FAMILY_LABELS.get(name, {})
        for matcher in node.matchers:
            if matcher.name in labels and (matcher.op in _POSITIVE) == bool(negations % 2):
                yield name, matcher
    unless = isinstance(node, Binary) and node.operator == "unless"
    for place, child in enumerate(children(node)):
        yield from _spared(child, negations + (unless and place == 1))

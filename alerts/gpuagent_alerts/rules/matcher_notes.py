"""What is wrong with matchers on alerts: labels that no alert has, and values that a label never has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent_alerts.notify.matchers import Matchers
from gpuagent_alerts.rules.alert_labels import AlertLabels, literals
from gpuagent_alerts.rules.model import suggest

_MOST_NAMED = 6
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def matcher_note(
    matcher: Matcher, alerts: Sequence[AlertLabels], disabled: Collection[str] = (), further: Collection[str] = ()
) -> str:
    """Return why a matcher cannot mean what it says, with what was probably meant; "" where it can.

    `disabled` are names of rules that were left out, `further` are labels that may be matched beside those of alerts.
    """
    if matcher.name in further:
        return ""
    if note := label_note(matcher.name, alerts, further):
        return note
    values = known_values(matcher.name, alerts)
    if values is None:
        return _form_note(matcher)
    named = literals(matcher)
    unknown = [value for value in named if value and value not in values]
    if unknown:
        return "; ".join(_never(matcher.name, value, values, disabled) for value in unknown)
    if named or any(Matchers([_positive(matcher)])({matcher.name: value}) for value in values):
        return ""
    return (
        f"no rule has a name of which {matcher} holds"
        if matcher.name == "alertname"
        else f"{matcher} holds of no alert"
    )


def label_note(label: str, alerts: Sequence[AlertLabels], further: Collection[str] = ()) -> str:
    """Return why a label means nothing: no alert has it; "" where one may."""
    if label in further or not alerts or any(alert.labels is None or label in alert.names for alert in alerts):
        return ""
    near = suggest(label, set(further).union(*(alert.names for alert in alerts)))
    return f"no alert has a label {label}{near and f'; {near}'}"


def known_values(label: str, alerts: Sequence[AlertLabels]) -> frozenset[str] | None:
    """Return every value that a label may have, without ""; None where it may be any text."""
    found: set[str] = set()
    for alert in alerts:
        values = alert.values(label)
        if values is None:
            return None
        found |= values
    return frozenset(found - {""})


def _never(label: str, value: str, values: frozenset[str], disabled: Collection[str]) -> str:
    near = suggest(value, values)
    if label == "alertname":
        if value in disabled:
            return f"{value} is among disabled_rules: there is no such alert"
        return f"there is no rule {value}{near and f'; {near}'}"
    if not values:
        return f'{label} is never "{value}": none is configured'
    names = sorted(values)
    if near or len(names) > _MOST_NAMED:
        return f'{label} is never "{value}"{near and f"; {near}"}'
    return f'{label} is never "{value}", only {" or ".join(names)}'


def _form_note(matcher: Matcher) -> str:
    """Return why a value does not have the form that all values of a label have."""
    return "; ".join(_wrong_forms(matcher.name, literals(matcher)))


def _wrong_forms(label: str, values: Sequence[str]) -> Iterator[str]:
    for value in filter(None, values):
        if label in {"gpu", "pid", "xid", "uid"} and not (value.isascii() and value.isdecimal()):
            yield f'{label} is a number, as in {label}="0", and never "{value}"'
        if label == "uuid" and _UUID.fullmatch(value) is None:
            yield f'uuid is never "{value}": `nvidia-smi -L` shows those of this machine'


def _positive(matcher: Matcher) -> Matcher:
    return matcher._replace(op=MatchOperator.MATCHES)

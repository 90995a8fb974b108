"""Prometheus rule files: what loads here loads in Prometheus 2.42 too, and means the same.

https://prometheus.io/docs/prometheus/2.42/configuration/recording_rules/. Every fault is told at once. The rules in
force are the shipped ones, a user's own, and none that was left out by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from gpuagent.core.regular_files import MAX_FILE_BYTES, read_regular_file
from gpuagent.core.yaml_document import YamlFault, YamlMapping, parse_yaml
from gpuagent_alerts.promql.expression import Expression, compile_expression
from gpuagent_alerts.promql.values import ExpressionError
from gpuagent_alerts.rules.model import (
    MISSING_DATA_ANNOTATION,
    AlertRule,
    MissingData,
    RecordRule,
    Rule,
    RuleFault,
    RuleFileError,
    RuleGroup,
    quote_text,
    suggest,
)
from gpuagent_alerts.rules.template import Template, TemplateFault, parse_template
from gpuagent_alerts.rules.yaml_fields import (
    LIMITS,
    FaultCollector,
    MappingFields,
    TextField,
)

_FILE_KEYS = ("groups",)
_GROUP_KEYS = ("name", "interval", "limit", "rules")
_RULE_KEYS = ("alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations")
_ALERT_ONLY = ("for", "keep_firing_for", "annotations")
_UNKNOWN_IN_2_42 = "unknown to Prometheus 2.42, where this file has to load too"
_NEWER = dict.fromkeys(
    ("source_tenants", "query_offset", "evaluation_delay", "labels", "partial_response_strategy"), _UNKNOWN_IN_2_42
)
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_A = {"label": "a label", "annotation": "an annotation"}
_MAX_LABELS = 64
"""Most labels of one rule; each of its alerts carries them all."""


def load_rule_file(path: Path, *, read: Callable[[Path], bytes] = read_regular_file) -> tuple[RuleGroup, ...]:
    """Return the groups of a file, whose content `read` returns. Raises RuleFileError, which has every fault."""
    sink = FaultCollector(str(path))
    try:
        content = read(path)
    except OSError as error:
        sink.add(0, f"cannot be read: {error.strerror or error}")
        raise RuleFileError(sink.faults) from None
    if len(content) > MAX_FILE_BYTES:
        sink.add(0, "is larger than 1 MiB", remedy="split it into several files")
        raise RuleFileError(sink.faults)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        sink.add(content[: error.start].count(b"\n") + 1, "is not UTF-8 text")
        raise RuleFileError(sink.faults) from None
    return load_rule_text(text, str(path))


def load_rule_text(text: str, file: str = "rules.yaml") -> tuple[RuleGroup, ...]:
    """Return the groups of a text. Raises RuleFileError likewise; `file` is what the faults call it."""
    sink = FaultCollector(file)
    try:
        root = parse_yaml(text, LIMITS)
    except YamlFault as fault:
        sink.add(fault.place.line, fault.problem)
        raise RuleFileError(sink.faults) from None
    groups: list[RuleGroup] = []
    if isinstance(root, YamlMapping):
        groups = _groups(sink, root)
    elif root is not None:
        sink.add(root.place.line, "a rule file begins with `groups:`")
    if sink.faults:
        raise RuleFileError(sink.sorted())
    return tuple(groups)


def _groups(sink: FaultCollector, root: YamlMapping) -> list[RuleGroup]:
    top = MappingFields(sink, root)
    top.check_keys(_FILE_KEYS)
    groups: list[RuleGroup] = []
    lines: dict[str, int] = {}
    for node in top.sections("groups"):
        group = _group(sink, node)
        if group.name in lines:
            sink.add(
                group.line, f"there is another group of this name in line {lines[group.name]}", group=group.name,
                remedy="group names are unique in a file",
            )  # fmt: skip
        elif group.name:
            lines[group.name] = group.line
        groups.append(group)
    return groups


def _group(sink: FaultCollector, node: YamlMapping) -> RuleGroup:
    head = MappingFields(sink, node)
    name = head.text("name")
    head.group = name.text if name else ""
    head.check_keys(_GROUP_KEYS, _NEWER)
    if not head.group:
        head.fault(head.line, "a group has no name")
    rules: list[Rule] = []
    seen: dict[object, int] = {}
    for rule_node in head.sections("rules"):
        rule = _rule(MappingFields(sink, rule_node, group=head.group))
        if rule is None:
            continue
        key = type(rule), rule.name, tuple(sorted(rule.label_texts.items()))
        if key in seen:
            sink.add(
                rule.line, f"the rule in line {seen[key]} has the same name and the same labels",
                group=head.group, rule=rule.name, remedy="their results would be mixed up: rename one, or add a label",
            )  # fmt: skip
        seen.setdefault(key, rule.line)
        rules.append(rule)
    interval = head.milliseconds("interval")
    return RuleGroup(
        name=head.group,
        rules=tuple(rules),
        interval_seconds=interval / 1000 if interval else None,
        limit=head.integer("limit"),
        file=sink.file,
        line=head.line,
    )


def _rule(fields: MappingFields) -> Rule | None:
    """Return the rule, or None where it is too broken to go on with; its faults are noted either way."""
    alert, record = fields.text("alert"), fields.text("record")
    name = alert or record
    fields.rule = name.text if name else ""
    fields.check_keys(_RULE_KEYS, _NEWER)
    named = _has_one_name(fields, alert, record)
    expression = _expression(fields)
    if named and alert is not None:
        return _alert(fields, alert, expression)
    if named and record is not None:
        return _record(fields, record, expression)
    return None


def _has_one_name(fields: MappingFields, alert: TextField | None, record: TextField | None) -> bool:
    given = [name for name in (alert, record) if name is not None and name.text]
    if len(given) == 1 and not (alert and record):
        return True
    if len(given) > 1:
        fields.fault(fields.line_of("record"), "a rule has either `alert` or `record`, not both", "make two rules")
    else:
        fields.fault(fields.line, "a rule needs a name: `alert: NAME`, or `record: NAME` for a recording rule")
    return False


def _expression(fields: MappingFields) -> Expression | None:
    found = fields.text("expr")
    if found is None or not found.text:
        if found is not None or not fields.has("expr"):
            fields.fault(fields.line_of("expr"), "a rule needs an expression in `expr`")
        return None
    try:
        expression = compile_expression(found.text)
    except ExpressionError as error:
        fields.fault(found.line, f"expr: {error}")
        return None
    return expression


def _alert(fields: MappingFields, name: TextField, expression: Expression | None) -> AlertRule | None:
    labels = _templates(fields, "labels")
    annotations = _templates(fields, "annotations")
    if "alertname" in labels:
        fields.fault(
            fields.line_of("labels"), "the label alertname is always the name of the alert", "use another label"
        )
    missing = _missing_data(fields, annotations.get(MISSING_DATA_ANNOTATION))
    for_seconds = fields.milliseconds("for") / 1000
    keep_seconds = fields.milliseconds("keep_firing_for") / 1000
    if expression is None:
        return None
    return AlertRule(
        name=name.text,
        expression=expression,
        for_seconds=for_seconds,
        keep_firing_for_seconds=keep_seconds,
        labels=labels,
        annotations=annotations,
        missing_data=missing,
        file=fields.file,
        line=fields.line,
    )


def _record(fields: MappingFields, name: TextField, expression: Expression | None) -> RecordRule | None:
    if not _METRIC_NAME.fullmatch(name.text):
        fields.fault(name.line, f"{quote_text(name.text)} cannot name a series", "letters, digits, _ and : are allowed")
    for key in _ALERT_ONLY:
        if fields.has(key):
            fields.fault(fields.line_of(key), f"a recording rule has no `{key}`", "leave it out")
    labels = {key: value.text for key, value in _names_checked(fields, "labels", "label")}
    if expression is None:
        return None
    return RecordRule(name.text, expression, labels, fields.file, fields.line)


def _templates(fields: MappingFields, key: str) -> dict[str, Template]:
    kind = "label" if key == "labels" else "annotation"
    templates = {}
    for name, value in _names_checked(fields, key, kind):
        try:
            templates[name] = parse_template(value.text)
        except TemplateFault as fault:
            fields.fault(value.line, f"{kind} {name}: {fault}")
    return templates


def _names_checked(fields: MappingFields, key: str, kind: str) -> list[tuple[str, TextField]]:
    texts = fields.texts(key)
    if len(texts) > _MAX_LABELS:
        fields.fault(fields.line_of(key), f"there are more than {_MAX_LABELS} {key}")
    for name, value in texts.items():
        if not _LABEL_NAME.fullmatch(name):
            fields.fault(value.line, f"{quote_text(name)} cannot name {_A[kind]}", "letters, digits and _ are allowed")
        elif name == "__name__" and kind == "label":
            fields.fault(value.line, "the label __name__ is the name of the series", "use another label")
    return list(texts.items())


def _missing_data(fields: MappingFields, template: Template | None) -> MissingData:
    if template is None:
        return MissingData.KEEP
    try:
        return MissingData(template.text)
    except ValueError:
        fields.fault(
            fields.line_of("annotations"),
            f"the annotation {MISSING_DATA_ANNOTATION} must be keep or resolve, not {quote_text(template.text)}",
        )
        return MissingData.KEEP


def merge_rules(
    shipped: Sequence[RuleGroup],
    own: Sequence[RuleGroup],
    disabled: Collection[str] = (),
    *,
    config_file: str = "disabled_rules",
) -> tuple[RuleGroup, ...]:
    """Return the shipped groups, then the user's own, as they are.

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
        return RuleFault(
            config_file, 0, f"{key}{quote_text(name)} is a rule of your own files", remedy="remove it there"
        )
    return RuleFault(
        config_file, 0, f"{key}no shipped rule is named {quote_text(name)}", remedy=suggest(name, sorted(shipped))
    )


_OF_RULES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})
"""Series that alert rules make."""
_SHOWN = 5


def find_unknown_metrics(groups: Sequence[RuleGroup], known: Iterable[str]) -> list[RuleFault]:
    """Return one note for each rule that selects a metric which is neither `known` nor recorded by a rule.

    A note, and no fault: the same file may also run in a Prometheus that has other metrics.
    """
    recorded = {rule.name for group in groups for rule in group.rules if isinstance(rule, RecordRule)}
    names = set(known) | recorded | _OF_RULES
    notes = []
    for group in groups:
        for rule in group.rules:
            unknown = sorted(rule.expression.metric_names - names)
            if unknown:
                what = "fire" if isinstance(rule, AlertRule) else "have a result"
                notes.append(
                    RuleFault(
                        rule.file,
                        rule.line,
                        f"the agent has no metric {', '.join(unknown[:_SHOWN])}: here this rule may never {what}",
                        group.name,
                        rule.name,
                        suggest(unknown[0], names),
                    )
                )
    return notes

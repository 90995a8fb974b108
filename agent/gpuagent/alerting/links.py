"""Where a message leads to: the agent's page, a board, a runbook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuagent_alerts.rules.model import AlertRule, Rule, RuleGroup
from gpuagent_alerts.rules.template import Template
from gpuagent_alerts.shipped import RUNBOOK_ANNOTATION, RUNBOOKS_URL

if TYPE_CHECKING:
    from gpuagent.config.models import Config


@dataclass(frozen=True, slots=True)
class Links:
    """Where a person finds more; "" where there is nothing."""

    page: str = ""
    """The agent's own page."""
    grafana: str = ""
    """A board. `{node}`, `{gpu}`, `{uuid}` and `{pid}` are filled in."""


def links_of(config: Config, own_url: str) -> Links:
    """Return the links by the configuration; `own_url` is the agent's address where none is configured."""
    return Links(_folder(config.external_url or own_url), config.links.grafana or "")


def with_runbooks(groups: Iterable[RuleGroup], base: str | None) -> tuple[RuleGroup, ...]:
    """Return the groups with the shipped runbooks' address replaced by `base`; None leaves them as they are."""
    if base is None:
        return tuple(groups)
    return tuple(
        replace(group, rules=tuple(_with_runbook(rule, _folder(base)) for rule in group.rules)) for group in groups
    )


def _with_runbook(rule: Rule, base: str) -> Rule:
    found = rule.annotations.get(RUNBOOK_ANNOTATION) if isinstance(rule, AlertRule) else None
    if not isinstance(rule, AlertRule) or found is None or not found.text.startswith(RUNBOOKS_URL):
        return rule
    url = base + found.text.removeprefix(RUNBOOKS_URL)
    return replace(rule, annotations={**rule.annotations, RUNBOOK_ANNOTATION: Template(url, (url,))})


def _folder(url: str) -> str:
    return url if not url or url.endswith("/") else f"{url}/"

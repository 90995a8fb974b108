"""Budgets: each has a label of its own, and matches what can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.config.loading import faults_of, load, write

_OWN = "(allowed: a name of its own for each of the two)"


def texts(file: Path) -> list[str]:
    """Return the faults of a file as a person reads them, without its name."""
    return [str(fault).removeprefix(str(file)) for fault in faults_of(file)]


@pytest.mark.parametrize(
    ("budgets", "fault"),
    [
        # A name that another budget gets from what it matches.
        (
            "[{match: {user: games}, memory: 1GiB}, {name: games, match: {user: mail}, memory: 1GiB}]",
            f"budgets[1].name: 'games' is already the label of budgets[0] {_OWN}",
        ),
        (
            "[{name: games, match: {user: mail}, memory: 1GiB}, {match: {user: games}, memory: 1GiB}]",
            f"budgets[1].match: 'games' is already the label of budgets[0] {_OWN}",
        ),
        (
            "[{match: {user: games}, memory: 1GiB}, {match: {user: games}, memory: 2GiB}]",
            f"budgets[1].match: 'games' is already the label of budgets[0] {_OWN}",
        ),
        (
            (
                "[{match: {unit: x.service, user: b}, memory: 1MiB}, "
                "{name: 'x.service,b', match: {user: b}, memory: 1MiB}]"
            ),
            f"budgets[1].name: 'x.service,b' is already the label of budgets[0] {_OWN}",
        ),
        (
            "[{match: {unit: user@5.service/x.service}, memory: 1GiB}]",
            (
                "budgets[0].match.unit: 'user@5.service/x.service' can be no unit of systemd's that counts: a user's "
                "own manager proves nothing (allowed: a name such as whisper.service)"
            ),
        ),
    ],
)
def test_a_budget_that_is_not_what_it_looks_like(tmp_path: Path, budgets: str, fault: str) -> None:
    """KILL-01: labels that two budgets would share, and matches that can never hold, are faults with their way out."""
    assert texts(write(tmp_path, f"budgets: {budgets}\n")) == [f":1: {fault}"]


def test_labels_of_their_own(tmp_path: Path) -> None:
    """Each budget is known by its name, or by what it matches."""
    text = "budgets: [{match: {user: a, unit: b.service}, memory: 1GiB}, {name: c, match: {user: a}, memory: 1GiB}]\n"
    assert [budget.label for budget in load(write(tmp_path, text)).budgets] == ["b.service,a", "c"]

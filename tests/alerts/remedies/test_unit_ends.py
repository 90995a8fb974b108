"""Which units end once another one has, by what systemd says of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.execution.unit_state import PROPERTIES
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from tests.fakes.units import Systemd

SCOPE, OTHER, HELPER = "job.scope", "other.service", "helper.service"
DOWN = {"ActiveState": "inactive"}


@pytest.mark.parametrize(
    ("units", "also"),
    [
        ({"job_scope": {"BoundBy": OTHER}, "other_service": {}}, True),
        ({"job_scope": {"BoundBy": OTHER}}, False),
        ({"job_scope": {"PropagatesStopTo": OTHER}, "other_service": {}}, True),
        ({"job_scope": {"BoundBy": HELPER}, "helper_service": {"ConsistsOf": OTHER}, "other_service": {}}, True),
        ({"job_scope": {"Wants": OTHER}, "other_service": {"StopWhenUnneeded": "yes", "WantedBy": SCOPE}}, True),
        ({"job_scope": {"Wants": OTHER}, "other_service": {"WantedBy": SCOPE}}, False),
        (
            {
                "job_scope": {"Wants": OTHER},
                "other_service": {"StopWhenUnneeded": "yes", "WantedBy": f"{SCOPE} {HELPER}"},
                "helper_service": {},
            },
            True,
        ),
    ],
)  # fmt: skip
def test_who_ends_with_a_scope(units: dict[str, dict[str, str]], also: bool) -> None:
    """A unit that systemd stops once a scope is empty is found; one that is down, or needed by another, is not."""
    systemd = Systemd(**({"job_scope": {}} | units))
    assert (OTHER in UnitEnds(systemd.show).ended_with(SCOPE)) is also


@pytest.mark.parametrize(
    "known",
    [
        {"FailureAction": "reboot"},
        {"SuccessAction": "poweroff"},
        {"StartLimitAction": "reboot-force"},
        {"JobTimeoutAction": "reboot"},
        {"OnSuccess": HELPER, "OnSuccessJobMode": "isolate"},
        {"BoundBy": "?"},
        {"Conflicts": "", "BoundBy": " ".join(f"u{number}.service" for number in range(300))},
    ],
)
def test_what_cannot_be_told(known: dict[str, str]) -> None:
    """An end that may reach the whole machine, or of which systemd does not tell everything, withholds."""
    with pytest.raises(UnseenProcesses):
        UnitEnds(Systemd(job_scope=known).show).ended_with(SCOPE)


def test_properties_of_every_answer() -> None:
    """Main processes are asked of all services at once, and of each unit everything else, once."""
    asked: list[tuple[str, ...]] = []

    def show(properties: Sequence[str], units: Sequence[str]) -> str:
        asked.append(tuple(units))
        assert tuple(properties) == (("Id", "MainPID", "ControlPID") if "*" in units[0] else PROPERTIES)
        return Systemd(own_service={"MainPID": "42"}).show(properties, units)

    ends = UnitEnds(show)
    assert list(ends.main_processes()) == [("own.service", 42)]
    assert list(ends.main_processes()) == [("own.service", 42)]
    assert not ends.ended_with("own.service")
    assert asked == [("*.service",), ("own.service",)]


SIMPLE_START = DOWN | {"Conflicts": "shutdown.target"}
NOT_SIMPLE = {
    "a conflict": ({}, {"helper_service": DOWN | {"Conflicts": OTHER}}, f"Conflicts={OTHER}"),
    "a timer": ({"OnSuccess": "x.timer"}, {"x_timer": DOWN}, "x.timer"),
    "a path": ({"OnSuccess": "x.path"}, {"x_path": DOWN}, "x.path"),
    "a socket": ({"OnFailure": "x.socket"}, {"x_socket": DOWN}, "x.socket"),
    "a chain": ({}, {"helper_service": DOWN | {"OnSuccess": "y.service"}, "y_service": DOWN}, "OnSuccess=y.service"),
    "a chain of failures": (
        {},
        {"helper_service": DOWN | {"OnFailure": "y.service"}, "y_service": DOWN | {"OnFailure": "z.service"}},
        "OnFailure=z.service",
    ),
    "what it upholds": ({}, {"helper_service": DOWN | {"Upholds": "y.service"}, "y_service": DOWN}, "Upholds"),
    "what it pulls": ({}, {"helper_service": DOWN | {"Wants": "y.service"}, "y_service": DOWN}, "y.service"),
    "what a target pulls": (
        {"OnFailure": "x.target"}, {"x_target": DOWN | {"Wants": "y.timer"}, "y_timer": DOWN}, "y.timer",
    ),
    "an action": ({}, {"helper_service": DOWN | {"SuccessAction": "exit"}}, "SuccessAction=exit"),
    "an action at a failure": ({}, {"helper_service": DOWN | {"FailureAction": "reboot"}}, "FailureAction=reboot"),
    "a shutdown": (
        {"OnFailure": "reboot.target"}, {"reboot_target": DOWN | {"Requires": "systemd-reboot.service"}}, "reboot",
    ),
    "a part of systemd": ({"OnSuccess": "systemd-poweroff.service"}, {"systemd-poweroff_service": DOWN}, "systemd"),
    "a flush": ({"OnSuccessJobMode": "flush"}, {"helper_service": DOWN}, "OnSuccessJobMode=flush"),
    "of a unit that ends along": (
        {"OnSuccess": "", "BoundBy": OTHER},
        {"other_service": {"OnSuccess": HELPER}, "helper_service": DOWN | {"Wants": "y.path"}, "y_path": DOWN},
        "y.path",
    ),
    "of a service that may start again": (
        {"OnSuccess": "", "BoundBy": OTHER}, {"other_service": {"Wants": "y.timer"}, "y_timer": DOWN}, "y.timer",
    ),
    "a directory of one that ends along": (
        {"OnSuccess": "", "BoundBy": OTHER},
        {"other_service": {"RuntimeDirectory": "ml"}, "c_service": {"RuntimeDirectory": "ml"}},
        "RuntimeDirectory=ml, which c.service has as well",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_SIMPLE, ids=lambda case: case.replace(" ", "-"))
def test_what_its_end_would_start(case: str) -> None:
    """An end that starts what is not simple withholds, and says which unit and which of its settings."""
    known, others, word = NOT_SIMPLE[case]
    systemd = Systemd(**({"job_scope": {"OnSuccess": HELPER} | known, "other_service": {}} | others))
    with pytest.raises(UnseenProcesses, match=word):
        UnitEnds(systemd.show).ended_with(SCOPE)


@pytest.mark.parametrize(
    ("known", "others"),
    [
        ({"OnFailure": "mail.service"}, {"mail_service": SIMPLE_START}),
        ({"OnSuccess": "mail.service"}, {"mail_service": SIMPLE_START, "shutdown_target": DOWN}),
        ({"OnSuccess": HELPER}, {"helper_service": {"Conflicts": OTHER, "OnSuccess": "x.timer"}}),
        ({"OnFailure": "x.timer"}, {"x_timer": {}}),
        ({"OnFailure": "gone.service"}, {}),
        ({"OnFailure": "mail.service"}, {"mail_service": SIMPLE_START | {"Conflicts": SCOPE}}),
    ],
)
def test_what_its_end_may_start(known: dict[str, str], others: dict[str, dict[str, str]]) -> None:
    """A mail at a failure, what is up already and what is not there keep nothing from an end."""
    systemd = Systemd(**({"job_scope": known, "other_service": {}} | others))
    assert not UnitEnds(systemd.show).ended_with(SCOPE)


UNNEEDED = {"StopWhenUnneeded": "yes", "WantedBy": SCOPE}


@pytest.mark.parametrize(
    ("other", "more", "ended"),
    [
        (UNNEEDED, {}, {OTHER}),
        (UNNEEDED | {"ConsistsOf": "y.service"}, {"y_service": {}}, {OTHER, "y.service"}),
        (
            UNNEEDED | {"ConsistsOf": "y.service", "RequiredBy": "z.service"}, {"y_service": {}, "z_service": {}},
            {OTHER, "y.service", "z.service"},
        ),
        (UNNEEDED | {"BoundBy": "y.service"}, {"y_service": {}}, {OTHER, "y.service"}),
        (UNNEEDED | {"UpheldBy": "y.service"}, {"y_service": {}}, {OTHER}),
        ({"StopWhenUnneeded": "no", "WantedBy": SCOPE}, {}, set()),
        (UNNEEDED | {"RequisiteOf": "y.service"}, {"y_service": DOWN}, {OTHER}),
        (UNNEEDED | {"RequiredBy": "y.service"}, {"y_service": {"ActiveState": "deactivating"}}, {OTHER, "y.service"}),
        (UNNEEDED | {"WantedBy": "y.service"}, {"y_service": {"ActiveState": "activating"}}, {OTHER}),
        (
            UNNEEDED | {"PropagatesStopTo": "y.service"},
            {"y_service": {"ConsistsOf": "z.service"}, "z_service": {}},
            {OTHER, "y.service", "z.service"},
        ),
        (UNNEEDED | {"Wants": "y.service"}, {"y_service": UNNEEDED | {"WantedBy": OTHER}}, {OTHER, "y.service"}),
        (
            UNNEEDED | {"WantedBy": f"{SCOPE} y.service"},
            {"y_service": UNNEEDED},
            {OTHER},
        ),
    ],
)  # fmt: skip
def test_what_is_no_longer_needed(other: dict[str, str], more: dict[str, dict[str, str]], ended: set[str]) -> None:
    """KILL-03: a unit with StopWhenUnneeded= ends with each that needs it, as others may too; its dependents too."""
    wants = "other.service y.service" if more.get("y_service", {}).get("StopWhenUnneeded") else OTHER
    systemd = Systemd(**({"job_scope": {"Wants": wants}, "other_service": other} | more))
    expected = ended | ({"y.service"} if "y.service" in wants else set())
    assert UnitEnds(systemd.show).ended_with(SCOPE).keys() == expected

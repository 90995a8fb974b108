"""Which units end once another one has, by what systemd says of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuagent_alerts.remedies.execution.unit_ends import PROPERTIES, UnitEnds
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses

SCOPE, OTHER, HELPER = "job.scope", "other.service", "helper.service"
_WORDS = {"ActiveState": "active", "StopWhenUnneeded": "no", "SuccessAction": "none", "FailureAction": "none"}
_MODES = {"OnSuccessJobMode": "fail", "OnFailureJobMode": "replace", "MainPID": "0"}


class Systemd:
    """Answers as `systemctl show` does."""

    def __init__(self, **units: dict[str, str]) -> None:
        self.units = {name.replace("_", "."): known for name, known in units.items()}

    def show(self, properties: Sequence[str], units: Sequence[str]) -> str:
        """Print these properties of these units."""
        return "\n".join(self._block(properties, unit) for unit in units)

    def _block(self, properties: Sequence[str], unit: str) -> str:
        known = {"Id": unit} | _WORDS | _MODES | self.units.get(unit, {"ActiveState": "inactive"})
        return "".join(f"{name}={known.get(name, '')}\n" for name in properties if known.get(name) != "?")


@pytest.mark.parametrize(
    ("units", "also"),
    [
        ({"job_scope": {"BoundBy": OTHER}, "other_service": {}}, True),
        ({"job_scope": {"BoundBy": OTHER}}, False),
        ({"job_scope": {"PropagatesStopTo": OTHER}, "other_service": {}}, True),
        ({"job_scope": {"BoundBy": HELPER}, "helper_service": {"ConsistsOf": OTHER}, "other_service": {}}, True),
        (
            {
                "job_scope": {"OnSuccess": HELPER},
                "helper_service": {"ActiveState": "inactive", "Conflicts": OTHER},
                "other_service": {},
            },
            True,
        ),
        ({"job_scope": {"OnSuccess": HELPER}, "helper_service": {"Conflicts": OTHER}, "other_service": {}}, False),
        (
            {
                "job_scope": {"OnFailure": HELPER},
                "helper_service": {"ActiveState": "failed", "Wants": "next.service"},
                "next_service": {"ActiveState": "inactive", "ConflictedBy": OTHER},
                "other_service": {},
            },
            True,
        ),
        ({"job_scope": {"Wants": OTHER}, "other_service": {"StopWhenUnneeded": "yes", "WantedBy": SCOPE}}, True),
        ({"job_scope": {"Wants": OTHER}, "other_service": {"WantedBy": SCOPE}}, False),
        (
            {
                "job_scope": {"Wants": OTHER},
                "other_service": {"StopWhenUnneeded": "yes", "WantedBy": f"{SCOPE} {HELPER}"},
                "helper_service": {},
            },
            False,
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
    """The main process of a service is asked with everything else, once."""
    asked: list[tuple[str, ...]] = []

    def show(properties: Sequence[str], units: Sequence[str]) -> str:
        asked.append(tuple(units))
        assert tuple(properties) == PROPERTIES
        return Systemd(own_service={"MainPID": "42"}).show(properties, units)

    ends = UnitEnds(show)
    assert ends.main_pid("own.service") == 42
    assert not ends.ended_with("own.service")
    assert asked == [("own.service",)]

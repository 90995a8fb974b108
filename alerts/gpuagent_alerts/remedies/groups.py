"""Which steps act on more than the processes that they are about: on a whole unit, container or job."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from gpuagent_alerts.remedies.steps import Kind, Step


class Group(StrEnum):
    """What a program may be given the id of; the value is the `scope` that judges who holds GPU memory there."""

    CONTAINER = "container"
    JOB = "job"


PLACES = {"{container_id}": Group.CONTAINER, "{slurm_job}": Group.JOB}
"""Arguments of an `exec` step that hand over a whole group."""


def groups_of(step: Step) -> frozenset[Group]:
    """Return the groups whose ids an `exec` step is given."""
    if step.kind is not Kind.EXEC:
        return frozenset()
    return frozenset(group for place, group in PLACES.items() if any(place in each for each in step.command))


def wrong_scope(step: Step, scope: str) -> Iterator[str]:
    """Yield why the ladder's scope does not judge everybody whom the step acts on."""
    for group in sorted(groups_of(step)):
        if group != scope:
            yield f"{step} acts on the whole {group}: the ladder needs scope: {group}, by which all are judged"

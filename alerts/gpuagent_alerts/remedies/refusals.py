"""Refusals that say more than a reason: who may be looked at instead, what may be done instead."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Self

from gpuagent_alerts.remedies.target import Facts, Target

_NAMED_SLURMD = re.compile(r"/slurm_[^/]+/|/[^/]+_slurmstepd\.scope(?:/|$)")
"""What `slurmd -N` makes, for several on one node."""


class NotMeant(str):
    """A refusal because root's allow list is about others, by facts that this process cannot choose.

    Then the next process of a ranking may be looked at. Any other refusal ends the choice: a process that hides behind
    a name or a namespace must not be the cause of an act on its neighbor.
    """

    __slots__ = ()


LOOK_AGAIN_SECONDS = 10.0
"""After an obstacle of which nobody knows when it is over."""


class Passing(str):
    """A refusal because of an obstacle that has an end and says nothing of the process: tried again when it is over.

    That is in `seconds`, as far as is known.
    """

    __slots__ = ("seconds",)
    seconds: float

    def __new__(cls, text: str, seconds: float = LOOK_AGAIN_SECONDS) -> Self:
        made = super().__new__(cls, text)
        made.seconds = seconds
        return made


def passes_in(reasons: Collection[str]) -> float | None:
    """Return the seconds after which all of these obstacles are over; None where one does not pass by itself."""
    passing = [reason.seconds for reason in reasons if isinstance(reason, Passing)]
    return max(passing) if passing and len(passing) == len(reasons) else None


class OnlyKill(str):
    """A refusal because only SIGKILL may reach the process now: where it follows, this step is passed over."""

    __slots__ = ()


def not_meant(text: str, facts: Facts, by: str) -> str:
    """Return the text as a refusal after which the next may be looked at, if it is root's word where the process is.

    `by` is what says so: the proven name of its unit or container, or `place` where it is in none. Then it may have
    left its unit for a cgroup of its user's own making, unless every cgroup that it is in is root's.
    """
    of_root = by in facts.identity.proven_names and (by != "place" or facts.contained is False)
    return NotMeant(text) if of_root else text


def in_another_unit(target: Target, facts: Facts) -> str:
    """Return the refusal of a process that runs in none of the units that are allowed."""
    if target.unit:
        return not_meant(f"{target.unit} is not in remedies.allow.units", facts, "unit")
    text = "it runs in no unit, and remedies.allow.units names some"
    return not_meant(text, facts, "container" if target.container_id else "place")


def unproven_unit(target: Target) -> str:
    """Return the refusal of a unit whose name others than root may have chosen."""
    return f"it is not proven that root, and nobody else, put it into {target.unit} (its cgroup is {target.cgroup})"


def unproven_container(target: Target) -> str:
    """Return the refusal of a container whose name others than root may have chosen."""
    return (
        f"container {target.container} is not proven: its cgroup {target.cgroup} may be one that others than root can"
        " write to, or its path is none on which the container runtimes of this host are known to make containers"
        " (processes.container_cgroups names further ones)"
    )


def unproven_job(target: Target) -> str:
    """Return the refusal of a Slurm job whose number others than root may have chosen, or that another job may have."""
    if _NAMED_SLURMD.search(target.cgroup):
        return (
            f"job {target.slurm_job} is not proven: its slurmd has a name of its own (cgroup {target.cgroup}), and"
            " another one on this node may have a job of that number"
        )
    return f"job {target.slurm_job} is not proven: others than root may have made the cgroup of it ({target.cgroup})"


def of_another_user(target: Target, facts: Facts) -> str:
    """Return the refusal; the next in a ranking may follow where the process cannot have chosen its user.

    A user may run processes as their own sub-uids (newuidmap(1)), which have no account, and as root or another user by
    a program that has that right.
    """
    text = f"{target.user or 'nobody'} is not in remedies.allow.users"
    account = target.uid != 0 and target.user not in {"", str(target.uid)}
    return NotMeant(text) if account and facts.root_user_namespace else text

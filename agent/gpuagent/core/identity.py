"""What names a process, a container and this node: pids are reused, identities are not."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

SHOWN_FIELDS = ("start_ticks", "boot_id", "pid_namespace", "card")
"""Fields that a request about a process carries of what was shown of it: its pid goes to another sooner or later."""

COMM_BYTES = 15
"""The kernel cuts the name of a process here: TASK_COMM_LEN without its end (include/linux/sched.h)."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""The unit of start times in /proc."""
NO_INSTANCE = -1
"""`gpu_instance_id` and `compute_instance_id` of a process or GPU without MIG."""


class ProcessId(NamedTuple):
    """Identity of a process: pids are reused, this is not. `start_ticks` is field 22 of /proc/<pid>/stat."""

    boot_id: str
    pid: int
    start_ticks: int


class SignKind(StrEnum):
    """What shows that processes are one job."""

    RANK = "rank"
    """Ranks that their environment counts, for one address."""
    LAUNCHER = "launcher"
    """Children of a parent that launches the ranks of one job, and nothing else."""
    WORKERS = "workers"
    """Workers of `multiprocessing` of one parent."""
    FORK = "fork"
    """A copy of its parent, which has executed no program since."""


class JobSign(NamedTuple):
    """A sign that a process is part of a job."""

    kind: SignKind
    group: str
    """The same for all of one job: pid and start of the parent, or what the environment says."""
    rank: int = 0
    """Rank of the process, where ranks are counted."""
    parent_names: tuple[str, ...] = ()
    """Names of its parent: a process on the never-list has no job."""


NODE_VARIABLE = "GPUAGENT_NODE"
_CONTAINER_ID = re.compile(r"((?:unproven/)?)([0-9a-f]{64})")
SHORT_ID = 12
"""Digits of a container's id that runtimes show."""
SIMULATED_NAME = "gpuagent-simulated"
"""Name of the directories of a simulated node: what is made up is kept beside what is real."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the host's name, or `$GPUAGENT_NODE`: in a pod the host's name is the pod's, and not the node's."""
    return environ.get(NODE_VARIABLE, "").strip() or platform.node()


def format_container(container_id: str) -> str:
    """Shorten an id of a container to the digits that runtimes show; a name stays whole."""
    found = _CONTAINER_ID.fullmatch(container_id)
    return container_id if found is None else f"{found[1]}{found[2][:SHORT_ID]}"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of the node, and where the agent keeps its state."""

    node: str
    state_file: Path | None
    simulated: str = ""
    machine: str = ""
    """Identity of the machine: see `procfs.machine.machine_id`."""
    url: str = ""
    """The agent's own page, where other machines reach it; "" where they do not."""
    lost: str = ""
    """State that was kept here before and is gone: see `node.lost_state`."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels that each alert carries in messages."""
        return {"node": self.node, **({"simulated": "true"} if self.simulated else {})}

"""Who counts towards a budget, and what they use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuagent.core.metrics.remedies import BudgetUse
from gpuagent.core.snapshot import ProcessReading, Snapshot
from gpuagent_alerts.remedies.target import names_container

if TYPE_CHECKING:
    from gpuagent.config.remedies import Budget


def belongs(budget: Budget, process: ProcessReading, snapshot: Snapshot) -> bool:
    """Return whether a process counts towards it: all keys given must hold.

    Memory whose holder is unproven counts towards nobody's account: it may be a dead process's. A name that a user may
    have chosen counts towards none either, and a user that a container gives its processes is no account of this
    machine. An app chooses its own name: the configuration asks for a user, a unit or a container beside it.
    """
    info, match = process.info, budget.match
    if info is None or process.holder_unproven:
        return False
    client = snapshot.clients.get(process.pid)
    return (
        (match.unit is None or (info.unit == match.unit and "unit" in info.proven_names))
        and (
            match.container is None
            or (
                "container" in info.proven_names
                and names_container(match.container, info.container_id, info.container_name)
            )
        )
        and (match.user is None or (info.user == match.user and info.on_host and not info.container_id))
        and (match.app is None or (client is not None and client.id == info.id and client.app == match.app))
    )


def uses(budgets: tuple[Budget, ...], snapshot: Snapshot) -> Iterator[BudgetUse]:
    """For each budget and each GPU whose processes are known, 0 included: a sum that is missing is no small one."""
    for budget in budgets:
        used = {gpu.identity.uuid: 0 for gpu in snapshot.gpus if gpu.processes_known}
        for process in snapshot.processes:
            if process.gpu_uuid in used and belongs(budget, process, snapshot):
                used[process.gpu_uuid] += process.used_bytes or 0
        for gpu in snapshot.gpus:
            identity = gpu.identity
            if identity.uuid in used:
                yield BudgetUse(budget.label, str(identity.index), identity.uuid, budget.memory, used[identity.uuid])

"""Which processes a firing alert can be about, or why none; and which processes count towards a memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuagent.core.metrics.remedies import BudgetUse
from gpuagent.core.snapshot import GpuState, ProcessReading, Snapshot
from gpuagent.core.units import format_bytes
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.safeguards.rule_need import calls_more_than_half_too_little
from gpuagent_alerts.remedies.safeguards.rule_sampling import (
    PROCESS_LABELS,
    is_always_true_on,
    reads_whole_gpus,
)
from gpuagent_alerts.remedies.settings import MemoryBudget
from gpuagent_alerts.remedies.snapshot_targets import targets_named, targets_on
from gpuagent_alerts.remedies.target import Target, names_container


def candidates_of(
    evaluation: AlertEvaluation, snapshot: Snapshot, budgets: Iterable[MemoryBudget], *, disrupts: bool
) -> list[Target]:
    """Return the processes of an alert's GPU or MIG instance that its other labels do not exclude.

    The labels are those of the expression's result: what the rule itself writes chooses nobody. Of a budget only those
    that count towards it. A refusal of the analysis leaves nobody for a ladder that `disrupts`, which has a step that a
    process may notice.
    """
    labels, analysis = evaluation.result_labels, evaluation.analysis
    if disrupts and (analysis.refusal or _doubt_there(evaluation, snapshot)):
        return []
    if evaluation.alert.labels.get("pid", "") != labels.get("pid", ""):
        return []
    on_gpu = targets_on(snapshot, labels.get("uuid", ""), labels.get("gpu_instance_id", ""), labels.get("gpu", ""))
    found = targets_named(on_gpu, labels, analysis)
    name = labels.get("budget", "")
    if not name:
        return found
    named = [budget for budget in budgets if budget.label == name]
    if len(named) != 1:
        return []
    members = {process.key for process in snapshot.processes if counts_towards(named[0], process, snapshot)}
    return [target for target in found if target.key in members]


def why_nobody(evaluation: AlertEvaluation, snapshot: Snapshot, *, disrupts: bool) -> str:
    """Return the first reason; `disrupts` says whether the alert's ladder has a step that a process may notice."""
    return next(_reasons(evaluation, snapshot, disrupts=disrupts))


def _reasons(evaluation: AlertEvaluation, snapshot: Snapshot, *, disrupts: bool) -> Iterator[str]:
    labels = evaluation.result_labels
    uuid, pid = labels.get("uuid", ""), labels.get("pid", "")
    if evaluation.analysis.refusal and disrupts:
        yield f"its rule is no reason to disrupt a process: {evaluation.analysis.refusal}"
    if evaluation.alert.labels.get("pid", "") != pid:
        yield "the rule writes the label pid itself: it names no process"
    if not uuid:
        yield "its expression's result has no label uuid: it names no GPU"
    gpu = next((each for each in snapshot.gpus if each.identity.uuid == uuid), None)
    if gpu is None:
        yield f"there is no GPU with UUID {uuid} now"
    elif disrupts and (doubt := _doubt_there(evaluation, snapshot)):
        yield f"its rule is no reason to disrupt a process: {doubt}"
    elif not gpu.processes_read:
        no_list = "the driver gave no list" if gpu.state is GpuState.OK else gpu.state
        why = gpu.act_refusal or gpu.reason or no_list
        yield f"the processes of GPU {gpu.identity.index} cannot be read ({why})"
    if pid:
        yield f"pid {pid} cannot be acted on: it has ended, is not on the GPU, hides, or its memory is unknown"
    if any(labels.get(label) for label in PROCESS_LABELS):
        yield "its expression sums up processes by what they say of themselves: it is about nobody in particular"
    if budget := labels.get("budget", ""):
        yield f"no process on the GPU of which enough is known counts towards the budget {budget}"
    yield "no process on the GPU can be acted on: none is alive, visible, and has a memory that the driver tells"


def _doubt_there(evaluation: AlertEvaluation, snapshot: Snapshot) -> str:
    """Return why a rule is no reason there: by the size of the GPU or instance, or by who uses it; "" if it is."""
    if beside := _used_beside(evaluation, snapshot):
        return beside
    total = _total_bytes_there(evaluation, snapshot)
    if not total:
        return ""
    if is_always_true_on(evaluation.expression, total, named=evaluation.analysis.named):
        where = "MIG instance" if evaluation.result_labels.get("gpu_instance_id") else "GPU"
        return f"it is true whatever is used of a {where} with {format_bytes(total)}, as far as it was tried"
    if calls_more_than_half_too_little(evaluation.expression, total):
        return f"it is true while more than half of {format_bytes(total)} is free"
    return ""


def _used_beside(evaluation: AlertEvaluation, snapshot: Snapshot) -> str:
    """Return why a rule that names no process accuses none of a GPU that shares the memory of the machine.

    What is used there may be the CPU's: to end a process of the GPU would give back the lesser part.
    """
    labels = evaluation.result_labels
    if labels.get("pid"):
        return ""
    gpu = next((each for each in snapshot.gpus if each.identity.uuid == labels.get("uuid", "")), None)
    split = None if gpu is None else gpu.reconciliation
    if split is None or split.host_bytes <= split.processes_bytes:
        return ""
    return (
        f"GPU and CPU share their memory, and more of it is used beside the GPU ({format_bytes(split.host_bytes)}) "
        f"than by its processes ({format_bytes(split.processes_bytes)})"
    )


def _total_bytes_there(evaluation: AlertEvaluation, snapshot: Snapshot) -> int:
    """Return what the memory comes to that the rule is about: of the instance, or of the GPU; 0 where it is unknown.

    A rule that reads figures of the whole GPU is about that, also where its result names an instance.
    """
    uuid = evaluation.result_labels.get("uuid", "")
    gpu = next((each for each in snapshot.gpus if each.identity.uuid == uuid), None)
    if gpu is None:
        return 0
    instance = evaluation.result_labels.get("gpu_instance_id", "")
    if instance and not reads_whole_gpus(evaluation.expression):
        return next(
            (each.memory.total_bytes or 0 for each in gpu.mig if str(each.gpu_instance_id) == instance and each.memory),
            0,
        )
    return gpu.memory.total_bytes or 0 if gpu.memory is not None else 0


def counts_towards(budget: MemoryBudget, process: ProcessReading, snapshot: Snapshot) -> bool:
    """Return whether a process counts towards it: all keys given must hold.

    Memory whose holder is unproven counts towards nobody's account: it may be a dead process's. A name that a user may
    have chosen counts towards none either, and a user that a container gives its processes is no account of this
    machine. An app chooses its own name: the configuration asks for a user, a unit or a container beside it.
    """
    info = process.info
    if info is None or process.holder_unproven:
        return False
    client = snapshot.clients.get(process.pid)
    return (
        (budget.unit is None or (info.unit == budget.unit and "unit" in info.proven_names))
        and (
            budget.container is None
            or (
                "container" in info.proven_names
                and names_container(budget.container, info.container_id, info.container_name)
            )
        )
        and (budget.user is None or (info.user == budget.user and info.on_host and not info.container_id))
        and (budget.app is None or (client is not None and client.id == info.id and client.app == budget.app))
    )


def budget_uses(budgets: tuple[MemoryBudget, ...], snapshot: Snapshot) -> Iterator[BudgetUse]:
    """Yield the use of each budget on each GPU whose processes are known, 0 included: a missing sum is no small one."""
    for budget in budgets:
        used = {gpu.identity.uuid: 0 for gpu in snapshot.gpus if gpu.processes_known}
        for process in snapshot.processes:
            if process.gpu_uuid in used and counts_towards(budget, process, snapshot):
                used[process.gpu_uuid] += process.used_bytes or 0
        for gpu in snapshot.gpus:
            identity = gpu.identity
            if identity.uuid in used:
                yield BudgetUse(
                    budget.label, str(identity.index), identity.uuid, budget.memory_bytes, used[identity.uuid]
                )

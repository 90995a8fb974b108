"""Who may be acted on. In doubt nobody, and the reason is said in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpuagent.doubt import SHUFFLED_LIST
from gpuagent.units import format_bytes, format_duration
from gpuagent_alerts.remedies.groups import wrong_scope
from gpuagent_alerts.remedies.never_list import NEVER, NEVER_UNITS, SHARED_UNITS, UNKILLABLE_SCORE, find_listed
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import (
    MAX_NAMESPACE_MEMBERS,
    Facts,
    NamespaceMember,
    Target,
    all_once,
    mismatches,
    names_container,
)
from gpuagent_alerts.remedies.victim import IDLE_FOR_SECONDS, VictimPolicy
from gpuagent_alerts.remedies.world import Order, Sight, UnitPermission

"""`oom_score_adj` of what even the kernel spares."""
_SPARING = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals whose default is not the end of the process, or its standstill."""
_NAMED = 5
"""Processes that a refusal names one by one."""
_USERS_OWN_MANAGER = re.compile(r"user@\d+\.service/")


class NotMeant(str):
    """A refusal because root's allow list is about others, by facts that this process cannot choose.

    Then the next process of a ranking may be looked at. Any other refusal ends the choice: a process that hides behind
    a name or a namespace must not be the cause of an act on its neighbour.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Allow:
    """All that are given must hold; with no name at all, nothing is allowed.

    Names of programs are not among them: a process chooses its own.
    """

    users: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    shared_units: tuple[str, ...] = ()
    """As in `units`; these may also be restarted although other users' work or sessions run in them."""
    containers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs."""
    min_age_seconds: float = 0.0
    min_memory_bytes: int = 0

    @property
    def names_nobody(self) -> bool:
        """No user, unit or container: a GPU alone is no permission."""
        return not (self.users or self.units or self.shared_units or self.containers)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration permits."""

    allow: Allow = field(default_factory=Allow)
    never: tuple[str, ...] = ()
    """Names beyond `NEVER`."""
    evidence: tuple[str, ...] = ("allocator", "strict")
    """Of a leak, for any step beyond `release_cache`."""
    mps_clients: bool = False
    """Ending a client of MPS can leave the others in an undefined state (NVIDIA's MPS manual)."""
    idle_for_seconds: float = IDLE_FOR_SECONDS
    """How long a process must have been observed at 0 % before the victim policy `idle` may choose it."""

    def refusals(
        self,
        step: Step,
        order: Order,
        sight: Sight,
        facts: Facts,
        now_seconds: float,
        protected: frozenset[int],
        scope: str = "process",
    ) -> Iterator[str]:
        """Yield every reason against this step on what `sight` and `facts` show, most basic first.

        This is the one place that decides: every step of every ladder, for every member, from a rule or by hand, comes
        here. What each fact may do, and who can write it, is in `provenance.py`. `facts` were read while a pidfd held
        the process, and `sight` is a reading that began after it was opened. `now_seconds` is CLOCK_BOOTTIME.
        """
        target = sight.target
        if target is None:
            yield "it is no longer on the GPU"
            return
        yield from _in_doubt(sight)
        yield from mismatches(target, facts.identity)  # what is judged is what is held
        if not target.holder_proven and not (order.by_hand and order.forced):  # a person has confirmed the process
            yield (
                "it has not been shown to hold this memory: its number was first listed while nobody looked"
                " (it counts once its memory grows or it is seen computing)"
            )
        yield from self._never(target, facts, protected)
        yield from _beyond_reach(facts)
        if "M" in target.kinds and step.disrupts and not self.mps_clients:
            yield "it is a client of MPS: ending one can harm the others (remedies.mps_clients permits it)"
        not_meant = False
        if not (order.forced or self._may_be_asked_by_hand(order)):
            for refusal in self._not_allowed(target, facts, sight, now_seconds):
                not_meant = not_meant or isinstance(refusal, NotMeant)
                yield refusal
        yield from self._evidence(step, order, target)
        yield from _busy(order, target, self.idle_for_seconds)
        if sight.choice is not None and (
            objection := sight.choice.objection(VictimPolicy(order.victim), target, order.passed_over)
        ):
            yield objection
        yield from _unproven(step, scope, target, facts)
        for refusal in (*wrong_scope(step, scope), *self._wrong_step(step, target, facts)):
            # Whom the allow list does not mean, and what no unit runs: there is one reason to leave it, and the next.
            is_nobodys = not_meant and step.kind is Kind.RESTART_UNIT and not target.unit
            yield _not_meant(refusal, facts, "container" if target.container_id else "place") if is_nobodys else refusal
        yield from self._ends_others(step, order, facts, protected)

    def for_members(self) -> Policy:
        """Return the policy for those that fall with the chosen process: how much each of them holds is no matter."""
        return replace(self, allow=replace(self.allow, min_memory_bytes=0))

    def unit_permission(self, target: Target) -> UnitPermission:
        """Return what may be done to the target's unit: root says in the configuration which one others may lose."""
        shared = target.unit in self.allow.shared_units
        return UnitPermission(
            shared, (*NEVER_UNITS, *self.never), known_shared=SHARED_UNITS, never_processes=(*NEVER, *self.never)
        )

    def _never(self, target: Target, facts: Facts, protected: frozenset[int]) -> Iterator[str]:
        if target.pid <= 1 or target.pid in protected:
            yield "it is the agent itself or one of its ancestors"
        if facts.kernel_thread:
            yield "it is a kernel thread"
        if facts.oom_score_adjust == UNKILLABLE_SCORE:
            yield "it is protected from the kernel's own killer (oom_score_adj -1000)"
        names = {facts.identity.name, target.name}
        if facts.identity.executable:
            names.add(facts.identity.executable.removesuffix(" (deleted)"))
        if facts.program_names is None:
            yield "it cannot be seen what it runs, so neither whether it is on the never-list"
        yield from self._on_never_list(names.union(facts.program_names or ()))

    def _on_never_list(self, names: Iterable[str]) -> Iterator[str]:
        if listed := find_listed(sorted(names), (*NEVER, *self.never)):
            yield str(listed)

    def _may_be_asked_by_hand(self, order: Order) -> bool:
        """Return whether a person's word is enough: where no allow list is given. One that is given is kept to."""
        return order.by_hand and self.allow == Allow()

    def _not_allowed(self, target: Target, facts: Facts, sight: Sight, now_seconds: float) -> Iterator[str]:
        allow = self.allow
        if allow.names_nobody:
            yield "nothing is allowed: remedies.allow names no users, units or containers"
            return
        if facts.user != target.user:
            yield f"its user has another name now: {facts.user or 'unknown'}, and not {target.user or 'unknown'}"
        if allow.users and target.user not in allow.users:
            yield _of_another_user(target, facts)
        if len(set(facts.uids)) != 1:
            yield f"it runs with the rights of more than one user (uids {', '.join(map(str, facts.uids)) or 'unknown'})"
        yield from self._not_in_place(target, facts)
        if allow.gpus and target.key.gpu_uuid not in allow.gpus:
            if str(target.gpu_index) not in allow.gpus:
                yield f"GPU {target.gpu_index} is not in remedies.allow.gpus"
            elif not sight.gpu_index_certain:
                yield (
                    "a GPU of this node is missing or has moved, or which GPUs there were is not known: indices in"
                    " remedies.allow.gpus may mean others now; give UUIDs, or remove indices.json from the state"
                    " directory and restart the agent if they are right as they are"
                )
        age = max(now_seconds - target.started_seconds, 0.0)
        if age < allow.min_age_seconds:
            yield f"it is {age:.0f} s old, younger than remedies.allow.min_age"
        if target.used_bytes < allow.min_memory_bytes:
            yield f"it holds {format_bytes(target.used_bytes)}, less than remedies.allow.min_memory"

    def _not_in_place(self, target: Target, facts: Facts) -> Iterator[str]:
        """Yield what is wrong with its unit or container."""
        allow, proven = self.allow, facts.identity.proven_names
        units = (*allow.units, *allow.shared_units)
        if units:
            if target.unit not in units:
                yield _in_another_unit(target, facts)
            elif "unit" not in proven:
                yield f"{_unproven_unit(target)}: the allow list means what is proven"
        in_allowed_unit = target.unit in units and "unit" in proven
        if allow.containers:
            if target.container_id and "container" not in proven:
                yield f"{_unproven_container(target)}: the allow list means what is proven"
            elif not any(
                names_container(name, target.container_id, target.container_name) for name in allow.containers
            ):
                text = f"container {target.container or '(none)'} is not in remedies.allow.containers"
                yield _not_meant(text, facts, "container" if target.container_id else "place")
        elif target.container_id and not in_allowed_unit:
            text = f"it runs in container {target.container}, and remedies.allow.containers names none"
            yield _not_meant(text, facts, "container")
        elif facts.contained is None:
            yield "it cannot be told whether it runs in a container"
        elif facts.contained and not units:
            yield (
                "it runs in a container (it has a pid namespace or a root directory of its own) that is not known by"
                " name: remedies.allow.users does not reach into it"
            )

    def _evidence(self, step: Step, order: Order, target: Target) -> Iterator[str]:
        chosen_as_leak = order.victim == "leaking"
        is_leak = bool(order.labels.get("evidence")) or order.alertname == "GpuProcessMemoryLeak" or chosen_as_leak
        if not step.disrupts or not is_leak:
            return
        evidence = target.evidence if chosen_as_leak else order.labels.get("evidence", "")
        if evidence not in self.evidence:
            wanted = " or ".join(self.evidence)
            yield f"the evidence of the leak is {evidence or 'unknown'}, and {step} needs {wanted} (remedies.evidence)"
        elif evidence == "allocator" and not target.driver_confirms:
            yield f"the driver's own figures do not confirm the leak: the app's word alone is no reason for {step}"

    def _wrong_step(self, step: Step, target: Target, facts: Facts) -> Iterator[str]:
        if step.kind is Kind.RESTART_UNIT:
            yield from _no_restart(target, self.unit_permission(target), facts)
        elif step.kind is Kind.EXEC:
            yield from _nothing_to_fill_in(step, target)
        elif target.unit and not target.proven_container_id and _would_end(step, facts):
            yield f"systemd supervises it ({target.unit}): a bare {step} could leave it down; use restart_unit"

    def _ends_others(self, step: Step, order: Order, facts: Facts, protected: frozenset[int]) -> Iterator[str]:
        """Yield what forbids the end of those whom the kernel ends, or hangs up, together with the process.

        The never-list stands for each of them in every case. A person who was shown those that do not belong with it
        may answer for them with --force.
        """
        ended, first = ended_with(step, facts), _leads(facts)
        if ended is None:
            yield f"it is {first}: it cannot be told whom its end would end as well"
            return
        if len(ended) > MAX_NAMESPACE_MEMBERS:
            yield f"it is {first} with more than {MAX_NAMESPACE_MEMBERS} other processes"
            return
        for each in ended:
            if each.pid in protected:
                yield f"{each}, which ends with it, is the agent itself or one of its ancestors"
            if each.oom_score_adjust == UNKILLABLE_SCORE:
                yield f"{each}, which ends with it, is protected from the kernel's own killer (oom_score_adj -1000)"
            for reason in self._on_never_list(each.names):
                yield f"{each} ends with it: {reason}"
        shown = order.shown if order.by_hand and order.forced else frozenset()
        if others := [str(each) for each in ended if not each.belongs and each.key not in shown]:
            yield f"it is {first}: ending it also ends {', '.join(_shortened(others))}"


def _not_meant(text: str, facts: Facts, by: str) -> str:
    """Return the text as a refusal after which the next may be looked at, if it is root's word where the process is.

    `by` is what says so: the proven name of its unit or container, or `place` where it is in none. Then it may have
    left its unit for a cgroup of its user's own making, unless every cgroup that it is in is root's.
    """
    of_root = by in facts.identity.proven_names and (by != "place" or facts.contained is False)
    return NotMeant(text) if of_root else text


def _in_another_unit(target: Target, facts: Facts) -> str:
    if target.unit:
        return _not_meant(f"{target.unit} is not in remedies.allow.units", facts, "unit")
    text = "it runs in no unit, and remedies.allow.units names some"
    return _not_meant(text, facts, "container" if target.container_id else "place")


def _unproven_unit(target: Target) -> str:
    return f"it is not proven that root, and nobody else, put it into {target.unit} (its cgroup is {target.cgroup})"


def _unproven_container(target: Target) -> str:
    return (
        f"container {target.container} is not proven: its cgroup {target.cgroup} may be one that others than root can"
        " write to, or its path is none on which the container runtimes of this host are known to make containers"
        " (processes.container_cgroups names further ones)"
    )


def _of_another_user(target: Target, facts: Facts) -> str:
    """Return the refusal; the next in a ranking may follow where the process cannot have chosen its user.

    A user may run processes as their own sub-uids (newuidmap(1)), which have no account, and as root or another user by
    a program that has that right.
    """
    text = f"{target.user or 'nobody'} is not in remedies.allow.users"
    account = target.uid != 0 and target.user not in {"", str(target.uid)}
    return NotMeant(text) if account and facts.root_user_namespace else text


def _in_doubt(sight: Sight) -> Iterator[str]:
    if not sight.host_pid_namespace:
        yield "the agent is not in the host's pid namespace: the driver's pids are not its own"
    if sight.act_refusal:
        yield sight.act_refusal
    elif not sight.trusted:
        yield SHUFFLED_LIST


def _busy(order: Order, target: Target, idle_for_seconds: float) -> Iterator[str]:
    """Whoever was chosen for being idle must be so still; of whom it is not known is not."""
    if order.victim != VictimPolicy.IDLE:
        return
    idle, wanted = target.idle_seconds, format_duration(idle_for_seconds)
    if idle is None:
        yield f"it is no longer idle, or that cannot be told: victim idle needs {wanted} at 0 % (remedies.idle_for)"
    elif idle < idle_for_seconds:
        yield f"it has not been idle for {wanted} (remedies.idle_for)"


def _beyond_reach(facts: Facts) -> Iterator[str]:
    if facts.is_dead:
        yield "it is a zombie: its parent has to reap it, and no signal helps"
    elif facts.state == "D":
        where = f" in {facts.wait_channel}" if facts.wait_channel not in {"", "0"} else ""
        yield f"it is in uninterruptible sleep (state D){where}: no signal reaches it now"


def _unproven(step: Step, scope: str, target: Target, facts: Facts) -> Iterator[str]:
    """Yield ids that others would be acted on by, and that the process or its user may have chosen."""
    if not step.disrupts:
        return
    proven = facts.identity.proven_names
    if scope == "container" and target.container_id and "container" not in proven:
        yield _unproven_container(target)
    if scope == "job" and target.slurm_job and "job" not in proven:
        yield f"others than root may have made the cgroup of job {target.slurm_job}"


def _no_restart(target: Target, permission: UnitPermission, facts: Facts) -> Iterator[str]:
    if not target.unit:
        yield "no systemd unit runs it: there is nothing to restart"
    elif "unit" not in facts.identity.proven_names and not _USERS_OWN_MANAGER.match(target.unit):
        yield _unproven_unit(target)
    elif _USERS_OWN_MANAGER.match(target.unit):
        yield f"{target.unit} belongs to a user's own manager, which only that user may command"
    elif refusal := permission.against([target.unit]):
        yield refusal


def _nothing_to_fill_in(step: Step, target: Target) -> Iterator[str]:
    """Yield what an argument asks for and root has not written: `docker restart` with a false id hits another."""
    places = {
        "{container_id}": (target.container_id, target.proven_container_id),
        "{slurm_job}": (target.slurm_job, target.proven_slurm_job),
    }
    for place, (claimed, proven) in places.items():
        if proven or not any(place in argument for argument in step.command):
            continue
        if claimed:
            yield f"{step} needs {place}, and others than root may have chosen {claimed}"
        else:
            yield f"{step} needs {place}, and the process has none"


def ended_with(step: Step, facts: Facts) -> tuple[NamespaceMember, ...] | None:
    """Return whom the kernel ends or hangs up together with the process where this step ends it.

    None where that is unknown.
    """
    if not (step.kind is Kind.RESTART_UNIT or _would_end(step, facts)):
        return ()
    inside = facts.namespace_members if facts.is_namespace_init else ()
    hung_up = facts.terminal_members
    return None if inside is None or hung_up is None else all_once(inside, hung_up)


def _leads(facts: Facts) -> str:
    if facts.is_namespace_init:
        return "the first process of a pid namespace"
    return "the leader of a session with a terminal"


def _shortened(others: list[str]) -> list[str]:
    return others if len(others) <= _NAMED else [*others[:_NAMED], f"{len(others) - _NAMED} others"]


def _would_end(step: Step, facts: Facts) -> bool:
    """SIGTERM and SIGKILL by intent; another signal where the process does not handle it and the default is to end."""
    if step.kind in {Kind.TERMINATE, Kind.KILL}:
        return True
    number = step.sends
    return number is not None and number not in _SPARING and not facts.handles(number)

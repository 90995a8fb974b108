"""Who may be acted on. In doubt nobody, and the reason is said in words."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpuagent.core.units import format_bytes
from gpuagent.core.wording import SHUFFLED_LIST
from gpuagent_alerts.remedies.observation import Observation, RemedyRequest, Spared, UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import (
    NEVER,
    NEVER_UNITS,
    SHARED_UNITS,
    UNKILLABLE_SCORE,
    find_listed,
)
from gpuagent_alerts.remedies.safeguards.refusals import (
    UNPROVEN_HOLDER,
    NotAllowListed,
    OnlyKillHelps,
    TemporaryRefusal,
    in_another_unit,
    in_unnamed_container,
    not_at_rest,
    not_meant,
    of_another_user,
    of_checkpoints,
    of_resumed,
    unproven_container,
    unproven_job,
    unproven_unit,
)
from gpuagent_alerts.remedies.safeguards.step_prerequisites import (
    no_bare_signal,
    no_limit,
    no_restart,
    nothing_to_fill_in,
)
from gpuagent_alerts.remedies.safeguards.unlisted_gpus import on_unlisted_gpus
from gpuagent_alerts.remedies.safeguards.victim import IDLE_FOR_SECONDS, VictimPolicy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind, wrong_scope
from gpuagent_alerts.remedies.target import (
    MAX_TIED,
    Facts,
    Target,
    TiedProcess,
    changes,
    may_be_named,
    names_container,
)

_NO_LEAK = "unknown: the process itself is not found to leak"
_NAMED = 5
"""Processes that a refusal names one by one."""
_OF_UNITS = frozenset({StepKind.NOTIFY, StepKind.DROP_CACHES, StepKind.RELEASE_CACHE, StepKind.RESTART_UNIT})
"""Steps that a unit's name permits although its processes are in a container."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """All that are given must hold; with no name at all, nothing is allowed.

    Names of programs are not among them: a process chooses its own. The names of the fields are the keys of
    `remedies.allow`.
    """

    users: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    shared_units: tuple[str, ...] = ()
    """As in `units`; these may also be restarted although other users' work or sessions run in them."""
    containers: tuple[str, ...] = ()
    unnamed_containers: bool = False
    """`users` reaches into containers without a name that are these users' own."""
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs."""
    min_age: float = 0.0
    """Seconds since its start."""
    min_memory: int = 0
    """Bytes of GPU memory."""

    @property
    def names_nobody(self) -> bool:
        """No user, unit or container: a GPU alone is no permission."""
        return not (self.users or self.units or self.shared_units or self.containers)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration permits."""

    allow: AllowList = field(default_factory=AllowList)
    never: tuple[str, ...] = ()
    """Names beyond `NEVER`."""
    supervisors: tuple[str, ...] = ()
    """Units whose main process starts the work of others, and goes on when one of those ends: by root's word."""
    evidence: tuple[str, ...] = ("confirmed", "allocator", "strict")
    """Evidence that a leak must have for any step beyond `release_cache`."""
    mps_clients: bool = False
    """Ending a client of MPS can leave the others in an undefined state (NVIDIA's MPS manual)."""
    restored_processes: bool = False
    """Ending a process that cuda-checkpoint has restored has hung machines (NVIDIA/cuda-checkpoint#53)."""
    judges_chosen: bool = True
    """False for the judgment of those that fall with the chosen process: the leak is that one's."""
    idle_for_seconds: float = IDLE_FOR_SECONDS
    """How long a process must have been observed at 0 % before the victim policy `idle` may choose it."""

    def refusals(
        self,
        step: RemedyStep,
        request: RemedyRequest,
        observation: Observation,
        facts: Facts,
        now_seconds: float,
        protected: frozenset[int],
        scope: str = "process",
    ) -> Iterator[str]:
        """Yield every reason against this step on what `observation` and `facts` show, most basic first.

        This is the one place that decides: every step of every ladder, for every member, from a rule or by hand, comes
        here. What each fact may do, and who can write it, is in docs/refusals.md, "Who can write what", which
        the tests hold this to. `facts` were read while a pidfd held
        the process, and `observation` is a reading that began after it was opened. `now_seconds` is CLOCK_BOOTTIME.
        """
        target = observation.target
        if target is None:
            yield "it is no longer on the GPU"
            return
        yield from _in_doubt(observation)
        yield from changes(target, facts)  # what is judged is what is held
        if facts.end:
            return
        yield from _unplaced(step, facts)
        if not target.holder_proven and not (request.by_hand and request.forced):  # a person has confirmed the process
            yield f"it has not been shown to hold this memory: {UNPROVEN_HOLDER}"
        yield from self._never(target, facts, protected)
        yield from _out_of_reach(step, facts)
        yield from self._of_mps(target) if step.disrupts else ()
        if step.disrupts:
            yield from of_checkpoints(facts, permitted=self.restored_processes)
            yield from of_resumed(target, observation.resumed, permitted=self.restored_processes)
        if may_end(step):
            yield from self._on_other_gpus(request, observation)
            yield from on_unlisted_gpus(step, scope, request, observation, facts, self.allow.gpus)
        is_not_meant = False
        if not (request.forced or self._may_be_asked_by_hand(request)):
            for refusal in self._not_allowed(step, target, facts, observation, now_seconds):
                is_not_meant = is_not_meant or isinstance(refusal, NotAllowListed)
                yield refusal
        yield from self._evidence(step, request, target)
        is_about_rest = step.disrupts or request.victim == VictimPolicy.IDLE
        yield from not_at_rest(request, target, self.idle_for_seconds) if is_about_rest else ()
        if observation.choice is not None and (
            objection := observation.choice.objection(VictimPolicy(request.victim), target, request.passed_over)
        ):
            yield TemporaryRefusal(objection)
        yield from _unproven(step, scope, target, facts)
        wrong = self._wrong_step(step, request, target, facts, unified_memory=observation.unified_memory)
        for refusal in (*wrong_scope(step, scope), *wrong):
            # Whom the allow list does not mean, and what no unit runs: there is one reason to leave it, and the next.
            is_nobodys = is_not_meant and step.kind is StepKind.RESTART_UNIT and not target.unit
            yield not_meant(refusal, facts, "container" if target.container_id else "place") if is_nobodys else refusal
        permission = self.unit_permission(target, self.spared(request, observation))
        yield from self.ends_others(step, request, facts, protected, permission)

    def spared(self, request: RemedyRequest, observation: Observation) -> Spared:
        """Return who on any GPU must not end along with the target, with the reason.

        A unit, a container, a job and a pid namespace end as a whole. Whoever is in there is judged by each place that
        it has on a GPU, as one that falls by the scope is: nothing else tells that it works, or for whom.
        """
        found: dict[tuple[int, int], str] = {}
        for each in observation.everybody:
            reason = next(self._not_to_end(request, each, observation), "")
            if reason and each.id != (observation.target.id if observation.target else None):
                found.setdefault(each.id[1:], f"{reason} (GPU {each.gpu_index})")
        return found

    def _on_other_gpus(self, request: RemedyRequest, observation: Observation) -> Iterator[str]:
        """Yield what forbids the end of the target by another place of it, on this GPU or another."""
        target = observation.target
        for each in observation.everybody:
            if target is None or each.id != target.id or each.key == target.key:
                continue
            for reason in self._not_to_end(request, each, observation):
                yield f"{reason} (GPU {each.gpu_index}, where it is too)"

    def _not_to_end(self, request: RemedyRequest, target: Target, observation: Observation) -> Iterator[str]:
        """Yield why this must not end along with what is acted on, by what was measured of it in one place."""
        if refusal := observation.act_refusals.get(target.key.gpu_uuid):
            yield refusal
        yield from self._of_mps(target)
        yield from of_resumed(target, observation.resumed, permitted=self.restored_processes)
        if not (request.forced or self._may_be_asked_by_hand(request)) and not self.allow.names_nobody:
            yield from self._not_on_gpu(target, observation)
        yield from not_at_rest(request, target, self.idle_for_seconds)

    def _of_mps(self, target: Target) -> Iterator[str]:
        if "M" in target.kinds and not self.mps_clients:
            yield "it is a client of MPS: ending one can harm the others (remedies.mps_clients permits it)"

    def _not_on_gpu(self, target: Target, observation: Observation) -> Iterator[str]:
        gpus = self.allow.gpus
        if not gpus or target.key.gpu_uuid in gpus:
            return
        if str(target.gpu_index) not in gpus:
            yield f"GPU {target.gpu_index} is not in remedies.allow.gpus"
        elif not observation.gpu_index_certain:
            yield (
                "a GPU of this node is missing or has moved, or which GPUs there were is not known: indices in"
                " remedies.allow.gpus may mean others now; give UUIDs, or remove indices.json from the state"
                " directory and restart the agent if they are right as they are"
            )

    def standing_refusal(self, target: Target, now_seconds: float) -> str:
        """Return what the configuration has against a target by what was measured of it; "" for nothing.

        It only spares a run that would be refused all the same: what permits an act, or passes the choice on to the
        next one, is read anew while a pidfd holds the process. `now_seconds` is CLOCK_BOOTTIME.
        """
        allow, units = self.allow, (*self.allow.units, *self.allow.shared_units)
        if allow.names_nobody:
            return ""  # the one reason for all of them, and on record as such
        if listed := find_listed((target.name,), (*NEVER, *self.never)):
            return str(listed)
        if allow.users and target.user not in allow.users:
            return f"{target.user or 'nobody'} is not in remedies.allow.users"
        if units and target.unit not in units:
            return f"{target.unit or 'no unit'} is not in remedies.allow.units"
        named = any(names_container(name, target.container_id, target.container_name) for name in allow.containers)
        if allow.containers and not named and not may_be_named(allow.containers, target):
            return f"container {target.container or '(none)'} is not in remedies.allow.containers"
        age = max(now_seconds - target.started_seconds, 0.0)
        return f"it is {age:.0f} s old, younger than remedies.allow.min_age" if age < allow.min_age else ""

    def for_members(self) -> Policy:
        """Return the policy for those that fall with the chosen process: it is no matter what each holds, or leaks."""
        return replace(self, allow=replace(self.allow, min_memory=0), judges_chosen=False)

    def unit_permission(self, target: Target, spared: Spared | None = None) -> UnitPermission:
        """Return what may be done to the target's unit: root says in the configuration which one others may lose."""
        shared = target.unit in self.allow.shared_units
        return UnitPermission(
            shared,
            (*NEVER_UNITS, *self.never),
            known_shared=SHARED_UNITS,
            never_processes=(*NEVER, *self.never),
            spared=spared or {},
            restored=self.restored_processes,
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
        if facts.program_names is None and (self.never or facts.state != "D"):
            yield "it cannot be seen what it runs, so neither whether it is on the never-list"
        yield from self._on_never_list(names.union(facts.program_names or ()), facts.never_listed)

    def _on_never_list(self, names: Iterable[str], never_listed: str) -> Iterator[str]:
        """Yield which entry means it; where a link leads to it, that says more than a name."""
        if never_listed:
            yield never_listed
        elif listed := find_listed(sorted(names), (*NEVER, *self.never)):
            yield str(listed)

    def _may_be_asked_by_hand(self, request: RemedyRequest) -> bool:
        """Return whether a person's word is enough: where no allow list is given. One that is given is kept to."""
        return request.by_hand and self.allow == AllowList()

    def _not_allowed(
        self, step: RemedyStep, target: Target, facts: Facts, observation: Observation, now_seconds: float
    ) -> Iterator[str]:
        allow = self.allow
        if allow.names_nobody:
            yield "nothing is allowed: remedies.allow names no users, units or containers"
            return
        if facts.user != target.user:
            yield f"its user has another name now: {facts.user or 'unknown'}, and not {target.user or 'unknown'}"
        if allow.users and target.user not in allow.users:
            yield of_another_user(target, facts)
        if not facts.uids:
            yield "it is not known whether all of its threads have the rights of one user"
        elif len(set(facts.uids)) != 1:
            yield f"it runs with the rights of more than one user (uids {', '.join(map(str, facts.uids))})"
        yield from self._not_in_place(step, target, facts)
        yield from self._not_on_gpu(target, observation)
        age = max(now_seconds - target.started_seconds, 0.0)
        if age < allow.min_age:
            yield f"it is {age:.0f} s old, younger than remedies.allow.min_age"
        if target.used_bytes < allow.min_memory:
            yield f"it holds {format_bytes(target.used_bytes)}, less than remedies.allow.min_memory"

    def _not_in_place(self, step: RemedyStep, target: Target, facts: Facts) -> Iterator[str]:
        """Yield what is wrong with its unit or container.

        A unit's name permits what is done to the unit as a whole, also where containers run in it. Whatever reaches one
        process in a container needs the container's name.
        """
        units = (*self.allow.units, *self.allow.shared_units)
        in_allowed_unit = target.unit in units and "unit" in facts.identity.proven_names
        if units and not in_allowed_unit:
            if target.unit in units:
                yield f"{unproven_unit(target)}: the allow list means what is proven"
            else:
                yield in_another_unit(target, facts)
        if self.allow.containers:
            yield from self._not_in_container(target, facts)
        elif target.container_id and not in_allowed_unit:
            text = f"it runs in container {target.container}, and remedies.allow.containers names none"
            yield not_meant(text, facts, "container")
        elif facts.contained is None:
            yield "it cannot be told whether it runs in a container"
        elif facts.contained and not units:
            yield from in_unnamed_container(facts, permitted=self.allow.unnamed_containers and bool(self.allow.users))
        elif (target.container_id or facts.contained) and in_allowed_unit and step.kind not in _OF_UNITS:
            permitted = "remedies.allow.units permits restart_unit, notify and release_cache there"
            if target.container_id:
                yield f"it runs in a container: {permitted}, and {step} needs remedies.allow.containers too"
            else:
                yield f"it runs in a container that is not known by name: {permitted}, and not {step}"

    def _not_in_container(self, target: Target, facts: Facts) -> Iterator[str]:
        """Yield why the allow list does not mean its container."""
        names = self.allow.containers
        text = f"container {target.container or '(none)'} is not in remedies.allow.containers"
        if target.container_id and "container" not in facts.identity.proven_names:
            yield f"{unproven_container(target)}: the allow list means what is proven"
        elif any(names_container(name, target.container_id, target.container_name) for name in names):
            return
        elif may_be_named(names, target):
            yield f"{text} by its id, and its name is not known (processes.container_socket tells names)"
        else:
            yield not_meant(text, facts, "container" if target.container_id else "place")

    def _evidence(self, step: RemedyStep, request: RemedyRequest, target: Target) -> Iterator[str]:
        """Yield what the leak lacks where the request is about one: the process must have a leak of its own.

        What a request is about says the expression of its rule, and no name or label; those may only withhold.
        """
        if not step.disrupts or not self.judges_chosen:
            return
        told, is_about = request.labels.get("evidence"), request.about_growth or request.victim == "leaking"
        own = [target.evidence_among(self.evidence, told)] if is_about else []
        for evidence in dict.fromkeys([told, *own] if told else own):
            if evidence not in self.evidence:
                found, wanted = evidence or _NO_LEAK, " or ".join(self.evidence)
                yield f"the evidence of the leak is {found}, and {step} needs {wanted} (remedies.evidence)"
                return
            if evidence in {"allocator", "confirmed"} and not target.driver_confirms:
                yield f"the driver's own figures do not confirm the leak: the app's word alone is no reason for {step}"
                return

    def _wrong_step(
        self, step: RemedyStep, request: RemedyRequest, target: Target, facts: Facts, *, unified_memory: bool
    ) -> Iterator[str]:
        if step.kind is StepKind.RESTART_UNIT:
            yield from no_restart(target, self.unit_permission(target), facts)
        elif step.kind is StepKind.LIMIT:
            yield from no_limit(target, self.unit_permission(target), facts, unified_memory=unified_memory)
        elif step.kind is StepKind.EXEC:
            yield from nothing_to_fill_in(step, target)
        elif step.signal_may_end:
            permission = self.unit_permission(target)
            yield from no_bare_signal(step, request, target, facts, permission, self.supervisors)

    def ends_others(
        self,
        step: RemedyStep,
        request: RemedyRequest,
        facts: Facts,
        protected: frozenset[int],
        permission: UnitPermission,
    ) -> Iterator[str]:
        """Yield what forbids the end of those who end, or are hung up, together with the process.

        The never-list stands for each of them in every case. A person who was shown those that are not its own work may
        answer for them with --force, and root for those of a unit by naming it as shared.
        """
        if not may_end(step):
            return
        if unseen := facts.ties.unseen:
            yield f"it cannot be told whom its end would end as well: {unseen}"
            return
        tied = facts.ties.processes
        if len(tied) > MAX_TIED:
            yield f"its end would end, or hang up, more than {MAX_TIED} other processes"
            return
        for each in tied:
            yield from self._against_end_of(each, protected, permission.spared)
        if step.kind is StepKind.RESTART_UNIT and permission.shared:
            return
        if step.kind is StepKind.RESTART_UNIT:  # which units it stops is asked of the unit as a whole, with its way out
            tied = tuple(each for each in tied if not each.is_stopped_by_unit)
        shown = request.shown if request.by_hand and request.forced else frozenset()
        if others := [str(each) for each in tied if not each.belongs and each.key not in shown]:
            yield f"ending it also ends, or hangs up, {', '.join(_shortened(others))}"

    def _against_end_of(self, each: TiedProcess, protected: frozenset[int], spared: Spared) -> Iterator[str]:
        """Yield what nothing lifts against the end of a process that ends along with the target."""
        if each.pid in protected:
            yield f"{each}, which ends with it, is the agent itself or one of its ancestors"
        if each.oom_score_adjust == UNKILLABLE_SCORE:
            yield f"{each}, which ends with it, is protected from the kernel's own killer (oom_score_adj -1000)"
        restored = "" if self.restored_processes else each.restored
        for reason in (*self._on_never_list(each.names, each.never_listed), spared.get(each.key, ""), restored):
            if reason:
                yield f"{each} ends with it: {reason}"


def _in_doubt(observation: Observation) -> Iterator[str]:
    if not observation.host_pid_namespace:
        yield "the agent is not in the host's pid namespace: the driver's pids are not its own"
    if observation.act_refusal:
        yield TemporaryRefusal(observation.act_refusal)
    elif not observation.trusted:
        yield SHUFFLED_LIST


def _unplaced(step: RemedyStep, facts: Facts) -> Iterator[str]:
    """Yield that it is not known where it runs, or that its threads run in more than one place."""
    if step.disrupts and not facts.identity.cgroup:
        yield "its cgroup cannot be read: it cannot be told in which unit or container it runs"
    if step.disrupts and facts.thread_elsewhere:
        yield facts.thread_elsewhere


def _out_of_reach(step: RemedyStep, facts: Facts) -> Iterator[str]:
    """Yield that it is stopped, frozen, or sleeps in state D: SIGKILL ends it, where its wait is killable (vfork, NFS).

    Any other signal would stay pending, and reach it when nobody knows any more whether there is a reason. A memory
    limit needs nothing of the process.
    """
    if step.kind is StepKind.LIMIT:
        return
    if facts.state in {"T", "t"} and step.sends not in {None, signal.SIGKILL}:
        yield OnlyKillHelps(f"it is stopped (state {facts.state}): only SIGKILL reaches it now, and not {step}")
    if facts.frozen_by and step.disrupts and step.sends != signal.SIGKILL:
        yield OnlyKillHelps(
            f"it is frozen by its cgroup {facts.frozen_by} (as by docker pause): only SIGKILL reaches it now, and not"
            f" {step}"
        )
    if facts.held_by and step.disrupts:
        yield (
            f"it is frozen by its cgroup {facts.held_by} of version 1 (as by docker pause): no signal reaches it, not"
            " even SIGKILL, until it is thawed, when it may hold less"
        )
    elif facts.state == "D" and step.disrupts and step.sends != signal.SIGKILL:
        where = f" in {facts.wait_channel}" if facts.wait_channel not in {"", "0"} else ""
        yield OnlyKillHelps(
            f"it is in uninterruptible sleep (state D){where}: only SIGKILL may reach it now, and not {step}"
        )


def _unproven(step: RemedyStep, scope: str, target: Target, facts: Facts) -> Iterator[str]:
    """Yield ids that others would be acted on by, and that the process or its user may have chosen."""
    if not step.disrupts:
        return
    proven = facts.identity.proven_names
    if scope == "container" and target.container_id and "container" not in proven:
        yield unproven_container(target)
    if scope == "job" and target.slurm_job and "job" not in proven:
        yield unproven_job(target)


def may_end(step: RemedyStep) -> bool:
    """Return whether a step ends the process, or runs a program that may."""
    return step.kind in {StepKind.RESTART_UNIT, StepKind.EXEC} or step.signal_may_end


def ended_with(step: RemedyStep, facts: Facts) -> tuple[TiedProcess, ...]:
    """Return whom the kernel ends or hangs up together with the process where this step ends it."""
    return facts.ties.processes if may_end(step) else ()


def _shortened(others: list[str]) -> list[str]:
    return others if len(others) <= _NAMED else [*others[:_NAMED], f"{len(others) - _NAMED} others"]

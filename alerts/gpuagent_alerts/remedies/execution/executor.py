"""Execute steps on this node: by pidfds, apps with a client, systemd, programs and messages."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import CGROUP_ROOT, MemoryLimits, NoMemoryLimits
from gpuagent.core.units import format_bytes
from gpuagent.procfs.containers import RunningContainer
from gpuagent.procfs.files import ProcFiles, parse_parent, parse_stat
from gpuagent.procfs.hanging import HANGS_AFTER_SECONDS, READS, read_with_timeout, read_within
from gpuagent.procfs.table import HIGHEST_PID
from gpuagent_alerts.masker import Masker
from gpuagent_alerts.programs.run import run_program
from gpuagent_alerts.remedies.execution.limiter import MemoryLimiter
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess, ancestors
from gpuagent_alerts.remedies.execution.reclaim import CacheReclaimer
from gpuagent_alerts.remedies.execution.slurm_jobs import JobName, SlurmJobs
from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.container_processes import GroupProcesses
from gpuagent_alerts.remedies.facts.fresh_lookup import LOOK_SECONDS
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader
from gpuagent_alerts.remedies.facts.ties import read_ties
from gpuagent_alerts.remedies.facts.timeout_reasons import why_slow
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from gpuagent_alerts.remedies.observation import ActionResult, LimitAsk, NotPermitted, ProcessHandle, UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.steps import RemedyStep, StepGroup, StepKind, groups_of
from gpuagent_alerts.remedies.target import Target, Ties
from gpuagent_alerts.secret import argument_secrets

_SAID = 300
_UNKNOWN_RUNTIME = ""
_ASKED = frozenset({"docker", "podman", _UNKNOWN_RUNTIME})
"""Runtimes that answer on docker's socket. Those of containerd, CRI-O, LXC and nspawn are not asked about there."""
AskRuntime = Callable[[str], RunningContainer | None]
"""Returns what the container runtime says of the running container with this id, None where it knows none. Raises
OSError where it cannot be asked."""
Warn = Callable[[Target, str, float], Awaitable[None]]
"""Puts a notice into the outbox: who is meant, why, and the seconds that are left."""


class AppFailure(Exception):
    """An app did not do what it was asked: `reason` for programs, the text for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Apps(Protocol):
    """Apps with an embedded client. Raises KeyError where none has this pid, AppFailure where it refuses or fails."""

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]: ...

    async def reset(self, pid: int) -> Mapping[str, Any]: ...

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]: ...


class NodeActionExecutor:
    """See `gpuagent_alerts.remedies.observation.ActionExecutor`."""

    def __init__(
        self,
        files: ProcFiles,
        reader: ProcessInfoReader,
        *,
        apps: Apps,
        warn: Warn,
        systemctl: Systemctl | None = None,
        may_touch: Callable[[int], bool] = lambda _: True,
        ask_runtime: AskRuntime | None = None,
        program_check: Callable[[Sequence[str]], str] = lambda _: "",
        digests: CommandDigests | None = None,
        never: NeverListEntries | None = None,
        jobs: SlurmJobs | None = None,
        reclaimer: CacheReclaimer | None = None,
        limits: MemoryLimits | None = None,
        cgroup_root: str = CGROUP_ROOT,
        supervisors: SupervisorUnits | None = None,
    ) -> None:
        """Put them together; `never` and `supervisors` are what the operator has in force, and `jobs` asks Slurm.

        `ask_runtime` asks the container runtime, in a thread, where that is permitted. `may_touch` is narrower under a
        scenario: only processes that the scenario was given. `limits` sets memory limits on cgroups
        below `cgroup_root`.
        `program_check` returns why a command must not be run, ""
        if it may be. It is asked right before each run. `digests` outlive the agent, as cool-downs do.
        """
        self._files = files
        self._reader = reader
        self._apps = apps
        self._warn = warn
        self._never = never or NeverListEntries()
        self._ties = SystemdTieFinder(files, reader.proven_container, supervisors=supervisors)
        units = UnitProcesses(files, ties=self._ties, never=self._never)
        self._systemctl = systemctl or Systemctl(units)
        self._groups = GroupProcesses(files, reader, units)
        self._jobs = jobs or SlurmJobs()
        self._reclaimer = reclaimer or CacheReclaimer()
        self._limiter = MemoryLimiter(files, units, self._groups, limits or NoMemoryLimits(), cgroup_root)
        self._may_touch = may_touch
        self._ask_runtime = ask_runtime
        self._program_check = program_check
        self._digests = digests or CommandDigests()

    def pin(self, target: Target) -> ProcessHandle:
        if not self._may_touch(target.pid):
            if target.pid > HIGHEST_PID:
                raise NotPermitted(f"the scenario has made pid {target.pid} up: there is no process to act on")
            raise NotPermitted(f"pid {target.pid} was not given to the scenario with --bind: it is never touched")
        return PidfdProcess(target, self._files, self._reader, self._digests, self._never)

    def protected(self) -> frozenset[int]:
        return ancestors(self._files, os.getpid(), lambda pid: parse_parent(self._files.read(pid, "status")))

    def is_alive(self, identity: ProcessId) -> bool:
        try:
            return read_within(HANGS_AFTER_SECONDS, partial(self._is_alive, identity))
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, ValueError):
            return True

    def _is_alive(self, identity: ProcessId) -> bool:
        stat = parse_stat(self._files.read(identity.pid, "stat"))
        if stat.start_ticks != identity.start_ticks:
            return False
        return stat.threads > 1 or not (stat.state in {"Z", "X"} or self._waits_for_its_namespace(identity.pid))

    def _waits_for_its_namespace(self, pid: int) -> bool:
        """Return whether the last thread has let go of memory and files, and waits for others of its pid namespace.

        do_exit() (kernel/exit.c) closes files before it comes to zap_pid_ns_processes(). There the first process of the
        namespace waits until parents outside have reaped all others, for which they may take for ever. The wait channel
        needs the right to trace a process: without it this is unknown, and the answer False.
        """
        try:
            return self._files.read(pid, "wchan").strip() == b"zap_pid_ns_processes"
        except OSError:
            return False

    async def tied_to(
        self, targets: Sequence[Target], ending: Collection[ProcessId] = (), *, with_units: bool = False
    ) -> Ties:
        pids = [each.pid for each in targets]
        try:
            return await read_with_timeout(
                partial(self._read_ties, pids, list(ending), with_units=with_units), LOOK_SECONDS
            )
        except TimeoutError:
            return Ties(unseen=await in_daemon_thread(partial(why_slow, LOOK_SECONDS), "slow look"))

    def _read_ties(self, pids: Sequence[int], ending: Sequence[ProcessId], *, with_units: bool) -> Ties:
        never = self._never.snapshot()
        return read_ties(
            self._files, self._reader, pids, ending=ending, finder=self._ties, never=never, with_units=with_units
        )

    async def notify(self, target: Target, reason: str, deadline_seconds: float) -> ActionResult:
        await self._warn(target, reason, deadline_seconds)
        notice = self._apps.notice(target.pid, reason, deadline_seconds)
        told = await _asked(notice, "the app was told", deadline_seconds)
        return ActionResult(ok=True, detail=told.detail)

    async def release_cache(self, target: Target, deadline_seconds: float, *, collect: bool = False) -> ActionResult:
        answer = self._apps.release(target.pid, collect=collect)
        return await _asked(answer, "the cache was given back", deadline_seconds)

    async def drop_caches(self, step: RemedyStep, *, rehearse: bool) -> ActionResult:
        return await self._reclaimer.drop(
            compact=step.compact, every_seconds=step.every_seconds, deadline_seconds=step.wait_seconds,
            rehearse=rehearse,
        )  # fmt: skip

    async def limit(self, step: RemedyStep, target: Target, permission: UnitPermission, ask: LimitAsk) -> ActionResult:
        return await self._limiter.limit(step, target, permission, ask)

    async def reset(self, target: Target, deadline_seconds: float) -> ActionResult:
        # torch cannot take a CUDA context down inside a process (pytorch#37664): what the context holds stays.
        return await _asked(
            self._apps.reset(target.pid), "the app unloaded what it had registered; its CUDA context stays",
            deadline_seconds,
        )  # fmt: skip

    async def group_refusal(self, step: RemedyStep, target: Target, permission: UnitPermission) -> str:
        if step.kind is StepKind.RESTART_UNIT:
            return await self._systemctl.refusal(target, permission)
        if step.kind is StepKind.LIMIT:
            return await self._limiter.refusal(target, permission)
        for group in sorted(groups_of(step)):
            look = partial(self._groups.refusal, target, group, permission)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    refusal = await in_daemon_thread(look, "group processes")
            except TimeoutError:
                reason = await in_daemon_thread(partial(why_slow, LOOK_SECONDS), "slow look")
                refusal = f"it cannot be seen whose processes the {group} runs: {reason}"
            if refusal:
                return refusal
        if StepGroup.JOB in groups_of(step):
            return (await self._jobs.name(target, step.command)).refusal
        return ""

    async def container_refusal(self, target: Target) -> str:
        if self._ask_runtime is None or not target.proven_container_id or target.container_runtime not in _ASKED:
            return ""
        try:
            return await read_with_timeout(partial(self._runtime_disagrees, self._ask_runtime, target), LOOK_SECONDS)
        except TimeoutError:
            reason = READS.reason() or f"the container runtime does not answer within {LOOK_SECONDS:g} s"
            return f"it cannot be seen what is in {target.container}: {reason}"

    def _runtime_disagrees(self, ask_runtime: AskRuntime, target: Target) -> str:
        """Compare name and cgroup of the container, by the runtime's word of this moment, with the target's."""
        try:
            container = ask_runtime(target.proven_container_id)
            if container is None:
                if target.container_runtime == _UNKNOWN_RUNTIME:  # it may be one that cannot be asked
                    return ""
                return f"the container runtime knows no running container {target.container}"
            info = self._reader.read(container.main_pid).info
        except (OSError, ValueError) as error:
            return f"the container runtime cannot be asked about {target.container}: {error}"
        # With a slash it is the kubelet's name, which a runtime does not know by that.
        if target.container_name and "/" not in target.container_name and container.name != target.container_name:
            return f"container {target.container} has another name now: {container.name or '(none)'}"
        if info.container_id != target.container_id or "container" not in info.proven_names:
            main = container.main_pid
            return f"by the container runtime's word, pid {main} and not pid {target.pid} is in {target.container}"
        return ""

    async def restart_unit(self, target: Target, permission: UnitPermission, deadline_seconds: float) -> ActionResult:
        return await self._systemctl.restart(target, permission, deadline_seconds)

    async def execute(self, step: RemedyStep, target: Target, permission: UnitPermission) -> ActionResult:
        """Run the program. What it is told about the target comes on standard input, as JSON: names are the victim's.

        The id of a group is in there only where an argument hands it over: then everybody in it has been judged.
        """
        if refusal := await self.group_refusal(step, target, permission):
            raise ActionRefused(refusal)
        command, deadline_seconds, groups = step.command, step.wait_seconds, groups_of(step)
        container_id = target.proven_container_id if StepGroup.CONTAINER in groups else ""
        job = await self._jobs.name(target, command) if StepGroup.JOB in groups else JobName()
        if job.refusal:
            raise ActionRefused(job.refusal)
        document = {
            "pid": target.pid, "start_ticks": target.id.start_ticks, "boot_id": target.id.boot_id,
            "name": target.name, "user": target.user, "container_id": container_id,
            "container_name": target.container_name if container_id else "",
            "slurm_job": job.id, "gpu": target.gpu_index,
            "gpu_uuid": target.key.gpu_uuid, "used_bytes": target.used_bytes,
        }  # fmt: skip
        filled = _filled(command, target, job.id)
        if refusal := await self._against_program(filled):
            return ActionResult(ok=False, detail=f"the program is not run: {refusal}", taken=False)
        finished = await run_program(filled, json.dumps(document).encode(), deadline_seconds, contained=True)
        if finished.status is None:
            return ActionResult(ok=False, detail=f"the program was ended after {deadline_seconds:g} s")
        said = Masker().hide(finished.said, argument_secrets(command), starts=finished.whole)[-_SAID:]
        return ActionResult(
            ok=finished.status == 0, detail=said if finished.status == 0 else f"status {finished.status} {said}"
        )

    async def _against_program(self, command: Sequence[str]) -> str:
        """Return why the program must not be run; "" if it may be. Its files may lie on a network."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await in_daemon_thread(partial(self._program_check, command), "program check")
        except TimeoutError:
            return f"the file system of {command[0]} does not answer within {LOOK_SECONDS:g} s"


def _filled(command: tuple[str, ...], target: Target, job: str) -> tuple[str, ...]:
    """Fill in `{pid}`, `{container_id}` and `{slurm_job}`: none of them is chosen by the process or its user."""
    places = {
        "{pid}": str(target.pid),
        "{container_id}": target.proven_container_id,
        "{slurm_job}": job,
    }
    filled = []
    for argument in command:
        for place, value in places.items():
            argument = argument.replace(place, value)  # noqa: PLW2901  one place after the other
        filled.append(argument)
    return tuple(filled)


async def _asked(answer: Awaitable[Mapping[str, Any]], done: str, deadline_seconds: float) -> ActionResult:
    """Wait for the whole answer of an app, for as long as the step waits, however slowly it comes in."""
    try:
        async with asyncio.timeout(deadline_seconds) as limit:
            document = await answer
    except TimeoutError as error:
        if not limit.expired():
            return ActionResult(ok=False, detail=str(error) or type(error).__name__)
        detail = f"the app has not answered within {deadline_seconds:g} s"
        return ActionResult(ok=False, detail=detail, answer={"reason": "late"})
    except KeyError:
        return ActionResult(ok=False, detail="the app has no embedded client", answer={"reason": "absent"})
    except AppFailure as failure:
        return ActionResult(ok=False, detail=str(failure), answer={"reason": failure.reason})
    except Exception as error:  # noqa: BLE001  whatever the app's side does, the ladder goes on
        return ActionResult(ok=False, detail=str(error) or type(error).__name__)
    freed = document.get("released_bytes")
    return ActionResult(
        ok=True, detail=f"{done}: {format_bytes(freed)}" if isinstance(freed, int) else done, answer=document
    )

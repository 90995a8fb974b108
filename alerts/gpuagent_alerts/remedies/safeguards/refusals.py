"""Refusals that say more than a reason: whether they pass, what may be done instead, and what lifts them.

Advice goes by the text of the refusal, which only this package writes: one entry for each, and a test that looks for
every refusal without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_duration
from gpuagent_alerts.remedies.observation import RemedyRequest, UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import NEVER_UNITS, runs_jobs
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.target import Facts, Target

_NAMED_SLURMD = re.compile(r"/slurm_[^/]+/|/[^/]+_slurmstepd\.scope(?:/|$)")
"""What `slurmd -N` makes, for several on one node."""
UNPROVEN_HOLDER = (
    "its number was first listed while nobody looked, and an earlier process with that number may have left it"
    " (it counts once its memory grows or it is seen computing)"
)
"""Why a process is not known to hold its memory, and what shows that it does."""
LOOK_AGAIN_SECONDS = 10.0
"""After an obstacle of which nobody knows when it is over."""
_LOOK_AGAIN = "Look again with `gpuagent ps`, and ask again if it is still meant."
_NOTHING_LIFTS = "Nothing lifts this. End it with what started it: systemctl, its job manager, its container runtime."
_BY_ITS_RUNTIME = (
    "Nothing lifts this. End the container with its runtime, or these processes with what started them, if all may end."
)
_JOB_ALONE = "If it is a job that {unit} has started, an administrator can end it alone: sudo kill {pid}."
_JOB_BY_FORCE = (
    "If it is a job that {unit} has started, --force ends it alone: you are shown who else is in {unit}, which may"
    " fail with it or be started again. For rules: name {unit} in remedies.supervisors in {file}, if its main process"
    " goes on when one that it has started ends."
)
_JOB_OF_A_UNIT = f"No option lifts this: {{unit}} is on the never-list, so no remedy restarts it. {_JOB_ALONE}"
_BY_HAND_ALONE = (
    "No option of gpuagent lifts this. If all of it may end, an administrator can end it with what started it:"
    " systemctl, its job manager, its container runtime."
)
"""For a refusal that no entry is about."""
_SHARED_UNIT = (
    "Name {unit} in remedies.allow.shared_units in {file}, or restart it yourself: systemctl restart {unit}. --force"
    " does not lift this."
)
_QUADLET = (
    "Podman made it below {unit} (a quadlet): restart the unit. Name {unit} in remedies.allow.units in {file}"
    " and take gpuagent kill --restart-unit {pid}, or restart it yourself: systemctl restart {unit}."
)
_RENAMES_ITSELF = (
    "Look again with `gpuagent ps`, and ask again if it is still meant. A program that renames itself all the time"
    " (Ray's workers, setproctitle) cannot be told from another one: end it with what started it (ray stop), or restart"
    " its unit."
)
_OWN_HAND = "If you mean it, do it yourself: systemctl restart {unit}."
_NAMED_BY_ITS_USER = "Say --force for the process alone: gpuagent kill --force PID; no rule goes by such an id."
_BY_SCOPE_JOB = (
    "Take steps that signal (terminate, kill) with scope: job in that ladder in {file}: they end the processes of this"
    " job on this node and nothing else. Or cancel it yourself: scancel with the id that squeue shows."
)
_BY_RUNTIME = "No option lifts this. If all of it may end, restart it yourself: systemctl, or its container runtime."
_FORCE_INTO_CONTAINER = (
    "Say --force: remedies.allow.users ends at a container, and remedies.allow.containers needs an id that is known."
)
_UNNAMED_CONTAINER = (
    "Say --force, or set remedies.allow.unnamed_containers: true in {file}: it is a container of its user's own."
)
_NAME_CONTAINER = "Say --force, or name its container in remedies.allow.containers in {file}: users end at a container."
RESTORED_WAY_OUT = "to end it can hang the machine (remedies.restored_processes permits it)"
"""What follows the reason why a process counts as restored from a checkpoint."""
_SUSPEND_FIRST = (
    "Suspend it first, which gives its memory back and makes its end safe: cuda-checkpoint --action lock --pid {pid},"
    " then --action checkpoint --pid {pid}; or set remedies.restored_processes: true in {file}."
    " --force does not lift this."
)
_SIMULATED = (
    "To try it on a simulated node, give that a process of your own: `gpuagent demo` does, or gpuagent run --simulate"
    " FILE --bind KEY=PID (docs/simulation.md)."
)
_DOCTOR = "`gpuagent doctor` says why."
_LOST_GPU = (
    "Say --force if you know that it is the process to end: gpuagent kill --force PID. Nobody can see then whether its"
    " memory came back."
)
_UNLISTED_GPU = (
    "Say --force if you know that nobody on that GPU has to stay, or have the GPU repaired: `gpuagent doctor` says why"
    " it cannot be read."
)
_SUPERVISED = r"^systemd supervises it"
_RESTART_OR_STOP = "Say --restart-unit, or stop the unit yourself: systemctl stop {unit}."
_ONE_OF_A_UNIT = (
    f"{_RESTART_OR_STOP} Or, for this process alone, --force: you are shown who else is in {{unit}}, which may fail"
    " with it or be started again. For rules: name {unit} in remedies.supervisors in {file}, if its main process goes"
    " on when one that it has started ends."
)
_ENDS_OTHERS = r"ending it also ends"
_MAY_NOT_TRACE = (
    "Give the agent the right to see it: CAP_SYS_PTRACE beside CAP_KILL in both lines of the drop-in"
    " (AmbientCapabilities= and CapabilityBoundingSet=; it is as good as root). Or have it started by an absolute path."
    " --force does not lift this."
)
_NOT_BY_FORCE = "--force does not lift this: end it with what started it, or its unit by systemctl."
_SHOWN_ANEW = "Ask again: --force answers for those alone that you were shown to end with it."
_OTHER_STEP = "No limit can be set there: take another step for it in {file} (release_cache, restart_unit, terminate)."
_OWN_CGROUP = (
    "Have root start it in a cgroup of its own: a systemd unit, a container or a Slurm job. Or take another step for it"
    " in {file}."
)
_LIMIT_HELPER = "Enable the helper: systemctl enable --now gpuagent-limit.socket (docs/remedies.md)."
_ADVICE = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"on a MIG instance|shares the machine's memory|MIG is on|keeps no memory limits", _OTHER_STEP),
        (r"no unit, container or job of root's making|is run by a user's own manager", _OWN_CGROUP),
        (r"others than root may move processes out|would hold for the whole login|would hold for all of", _OWN_CGROUP),
        (
            r"limit already|has limited|changes no limit",
            "See to it with nvidia-smi memory-limits, or leave it as it is.",
        ),
        (r"only root may set a memory limit|gpuagent-limit", _LIMIT_HELPER),
        (r"need cgroup version 2|memory limits need version 2", "Boot with systemd.unified_cgroup_hierarchy=1."),
        (r"does not answer within", _LOOK_AGAIN),
        (r"; that user's processes have to end first", "Ask again then. --force does not lift this."),
        (r"remedies\.allow\.shared_units", _SHARED_UNIT),
        (r"remedies\.allow\.unnamed_containers", _UNNAMED_CONTAINER),
        (r"that is not known by name", _FORCE_INTO_CONTAINER),
        (r"its name is not known", "Say --force, or give its id in remedies.allow.containers in {file}."),
        (r"runs in container .* remedies\.allow\.containers names none|remedies\.allow\.containers", _NAME_CONTAINER),
        (r"remedies\.allow names no", "Say --force, or name its user in remedies.allow.users in {file}."),
        (r"remedies\.allow\.(?P<key>min_\w+)", "Say --force, or lower remedies.allow.{key} in {file}."),
        (r"remedies\.allow\.(?P<key>\w+)", "Say --force, or add it to remedies.allow.{key} in {file}."),
        (r"remedies\.restored_processes", _SUSPEND_FIRST),
        (r"checkpoints or restores it at this moment", "Ask again once that is done."),
        (r"remedies\.mps_clients", "Set remedies.mps_clients: true in {file}; --force does not lift this."),
        (r"remedies\.idle_for|rule is about idleness", "Only rules go by idleness: ask for it by its pid."),
        (r"do not confirm the leak", "Wait until `gpuagent ps` shows its memory growing, or ask for it by its pid."),
        (r"the rights of .*one user|whether it runs in a container", "Say --force if you know what it is."),
        (r"the allow list means what is proven", "Say --force if you know what it is."),
        (r"^it is not proven that root", _OWN_HAND),
        (r"^container .* is not proven: its cgroup /\S+\.service/libpod-", _QUADLET),
        (r"job array|heterogeneous job|Slurm does not tell|by Slurm's word", _BY_SCOPE_JOB),
        (r"is not proven: |others than root may have chosen", _NAMED_BY_ITS_USER),
        (r"not been shown to hold this memory", "Say --force if it holds it, or wait until it grows or computes."),
        (r"remedies\.evidence", "Add it to remedies.evidence in {file}."),
        (r"acts on the whole", "Set scope in that ladder in {file} to what its program is given the id of."),
        (r"is the main process of \S+, which ends with it", _RESTART_OR_STOP),
        (
            r"ends with it|cannot be told whom (its end|the end of .*) would|would end, or hang up, more than",
            _BY_ITS_RUNTIME,
        ),
        (_ENDS_OTHERS, "Say --force if these processes may end as well."),
        (r"first process of the system", _NOTHING_LIFTS),
        (rf"{_SUPERVISED}.*remedies\.supervisors", _ONE_OF_A_UNIT),
        (_SUPERVISED, _RESTART_OR_STOP),
        (r"^no systemd unit runs it", "Leave out --restart-unit: a signal is enough here."),
        (
            r"belongs to a user's own manager",
            "Leave out --restart-unit: a signal is enough here. Or as {user}: systemctl --user restart it.",
        ),
        (r"on the never-list .*: others depend on it|refuses to be restarted by hand", _OWN_HAND),
        (r"on the never-list$", _LOOK_AGAIN),
        (
            r"cannot be told whether (it|one) is on the never-list",
            "Write paths without * in remedies.never in {file}, that the agent may read; --force does not lift this.",
        ),
        (r"may not be read, which takes CAP_SYS_PTRACE", _MAY_NOT_TRACE),
        (r"on the never-list|oom_score_adj|would lose the session", _NOTHING_LIFTS),
        (r"a scenario has made it up|the scenario has made pid|not given to the scenario", _SIMULATED),
        (r"run systemctl daemon-reload$", "Run systemctl daemon-reload, and ask again."),
        (
            r"and would be started: |could stay down; |has ExecCondition=|cannot be restarted: it has ",
            _OWN_HAND,
        ),
        (r"only systemd can tell|see to PIDFile=|^it cannot be seen which programs a restart of", _OWN_HAND),
        (
            r"also restarts .*: |^starting .* stops |stops, for good, |what a restart of|for the whole machine",
            _OWN_HAND,
        ),
        (
            r"has conditions, which may not hold",
            "Ask again once systemd-analyze condition --unit={unit} says they hold.",
        ),
        (r"within its start limit", f"Wait until the interval of its start limit is over. {_OWN_HAND}"),
        (
            r"^systemd (cannot be asked about|has no unit|did not tell|has a job)|is not the name of a service",
            _OWN_HAND,
        ),
        (
            r"according to systemd|, not active$|are (restarted|stopped) (together|when)|end of .* would also end",
            _OWN_HAND,
        ),
        (
            r"container runtime|would be cut off$|it cannot be seen (whose|what|whether)|not in .* any more$",
            _BY_RUNTIME,
        ),
        (r"^pid .* runs in|runs containers: |somebody's session runs in|runs processes of other users", _BY_RUNTIME),
        (r"does not answer$", _LOOK_AGAIN),
        (r"have the same UUID|was at PCI address", "Nothing lifts this: which GPU is meant is not certain. " + _DOCTOR),
        (r"the agent itself or one of its ancestors", "Stop the agent: systemctl stop gpuagent."),
        (r"it is a kernel thread", "No signal ends a kernel thread: its driver has to be unloaded."),
        (r"it is ending", _LOOK_AGAIN),
        (r"is a zombie", "End or restart its parent, pid {parent}: only the parent can reap it."),
        (r"it is stopped \(state", "Have it go on (SIGCONT), or kill it: a kill step, or `gpuagent kill`."),
        (r"of version 1 \(as by docker pause\)", "Thaw it first (docker unpause, systemctl thaw), and ask again."),
        (r"uninterruptible sleep", "Kill it (gpuagent kill, or a kill step), or wait for its call into the kernel."),
        (r"not in the host's pid namespace", 'Run the agent on the host, or with the host\'s pids ("hostPID: true").'),
        (r"process list has another form than documented", "Upgrade the driver."),
        (r"since the agent started \(.*\): (nobody knows whose|the process may be)", _UNLISTED_GPU),
        (r"has not been readable", _LOST_GPU),
        (r"no fresh reading|cannot be read \(|cannot be held|cannot be looked at|behind the alert", _DOCTOR),
        (r"another remedy is under way|began to act on this GPU", "Wait for its end: `gpuagent remedies` shows it."),
        (
            r"its name has changed|command line has changed|has changed since: .*\b(?:name|command line)",
            _RENAMES_ITSELF,
        ),
        (r"no longer on the GPU|is another process now|has changed|have joined it", _LOOK_AGAIN),
        (r"cannot be read now|command line has changed, or cannot be read|it has run since", _LOOK_AGAIN),
        (r"its cgroup cannot be read", _DOCTOR),
        (r"has another name now", _LOOK_AGAIN),
        (r"remedies are stopped|rules leave the processes of", "`gpuagent remedies reset` lets them go on."),
        (r"not permitted", "Give the agent the right to signal: systemd/gpuagent-kill.conf as a drop-in (CAP_KILL)."),
        (r"others may have written the state", "Do what the refusal says, then `sudo systemctl restart gpuagent`."),
        (r"no state directory", "Set state_dir in {file} to a directory that the agent may write."),
        (
            r"^not recorded.*(is locked|another program is using)",
            "Another program has the agent's state file open: `fuser -v` on state.db names it; end it, and ask again.",
        ),
        (
            r"^not recorded.*not the file that was opened",
            "Somebody removed or replaced state.db; the agent writes it anew within seconds: ask again.",
        ),
        (
            r"^not recorded.*(is damaged|newer version|another program's database|cannot be used \()",
            "See what `gpuagent status` says of the state file, and do that first.",
        ),
        (r"^not recorded, so not done", "See that the agent's state_dir has room and can be written."),
    )
)


class NotAllowListed(str):
    """A refusal because root's allow list is about others, by facts that this process cannot choose.

    Then the next process of a ranking may be looked at. Any other refusal ends the choice: a process that hides behind
    a name or a namespace must not be the cause of an act on its neighbor.
    """

    __slots__ = ()


class TemporaryRefusal(str):
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
    passing = [reason.seconds for reason in reasons if isinstance(reason, TemporaryRefusal)]
    return max(passing) if passing and len(passing) == len(reasons) else None


class OnlyKillHelps(str):
    """A refusal because only SIGKILL may reach the process now: where it follows, this step is passed over."""

    __slots__ = ()


def not_meant(text: str, facts: Facts, by: str) -> str:
    """Return the text as a refusal after which the next may be looked at, if it is root's word where the process is.

    `by` is what says so: the proven name of its unit or container, or `place` where it is in none. Then it may have
    left its unit for a cgroup of its user's own making, unless every cgroup that it is in is root's.
    """
    of_root = by in facts.identity.proven_names and (by != "place" or facts.contained is False)
    return NotAllowListed(text) if of_root else text


def in_another_unit(target: Target, facts: Facts) -> str:
    """Return the refusal of a process that runs in none of the units that are allowed."""
    if target.unit:
        return not_meant(f"{target.unit} is not in remedies.allow.units", facts, "unit")
    text = "it runs in no unit, and remedies.allow.units names some"
    return not_meant(text, facts, "container" if target.container_id else "place")


def in_unnamed_container(facts: Facts, *, permitted: bool) -> Iterator[str]:
    """Yield that it runs in a container without a name, unless it is its user's own and root permits those."""
    if facts.users_container and permitted:
        return
    way_out = " (remedies.allow.unnamed_containers permits it)" if facts.users_container else ""
    yield (
        "it runs in a container (it has a pid namespace or a root directory of its own) that is not known by name:"
        f" remedies.allow.users does not reach into it{way_out}"
    )


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
            " another one on this node may have a job of that number, or others than root may have made that cgroup"
        )
    return f"job {target.slurm_job} is not proven: others than root may have made the cgroup of it ({target.cgroup})"


def of_another_user(target: Target, facts: Facts) -> str:
    """Return the refusal; the next in a ranking may follow where the process cannot have chosen its user.

    A user may run processes as their own sub-uids (newuidmap(1)), which have no account, and as root or another user by
    a program that has that right.
    """
    text = f"{target.user or 'nobody'} is not in remedies.allow.users"
    account = target.uid != 0 and target.user not in {"", str(target.uid)}
    return NotAllowListed(text) if account and facts.root_user_namespace else text


def of_checkpoints(facts: Facts, *, permitted: bool) -> Iterator[str]:
    """Yield that it is being checkpointed, or was restored from a checkpoint where that is not permitted."""
    if facts.checkpointing:
        yield TemporaryRefusal(facts.checkpointing)
    if facts.restored and not permitted:
        yield f"{facts.restored}: {RESTORED_WAY_OUT}"


def of_resumed(target: Target, resumed: Collection[ProcessId], *, permitted: bool) -> Iterator[str]:
    """Yield that it has left its GPUs and come back, as what cuda-checkpoint suspends and resumes, unless permitted."""
    if target.id in resumed and not permitted:
        yield f"it has left the GPU and come back, as what cuda-checkpoint suspends and resumes: {RESTORED_WAY_OUT}"


def not_at_rest(request: RemedyRequest, target: Target, idle_for_seconds: float) -> Iterator[str]:
    """Yield why it is not idle, or not for long enough; of whom that is not known is not.

    Who was chosen for being idle must be so still, and who ends with it too. So must all of them where a rule is true
    because a process or its GPU does not work; such a rule looks at one engine or the other, or at power and clocks,
    and never at memory that is being filled.
    """
    idle = target.idle_seconds
    if request.victim == VictimPolicy.IDLE:
        wanted = format_duration(idle_for_seconds)
        if idle is None:
            yield f"it is no longer idle, or that cannot be told: victim idle needs {wanted} at 0 % (remedies.idle_for)"
        elif idle < idle_for_seconds:
            yield f"it has not been idle for {wanted} (remedies.idle_for)"
    elif request.idle_for_seconds is not None:
        at_rest = "0 % of multiprocessors, memory, encoder and decoder, and the same memory, on all of its GPUs"
        if idle is None:
            yield f"its rule is about idleness, and the process works, or that cannot be told: at rest is {at_rest}"
        elif idle < request.idle_for_seconds:
            yield (
                f"its rule is about idleness, and the process has been at rest for {format_duration(idle)} of"
                f" {format_duration(request.idle_for_seconds)} (`for`, or remedies.idle_for where that is longer): at"
                f" rest is {at_rest}"
            )


def advice_on(reasons: Iterable[str], target: Target, config_file: str, *, forced: bool = False) -> list[str]:
    """Return what lifts each of these refusals, without repeats, or says that nothing of gpuagent's does.

    `forced` says that --force was given: it is no advice then.
    """
    found: dict[str, None] = {}
    words = {
        "key": "", "file": config_file, "unit": target.unit or "UNIT", "user": target.user or "its user",
        "parent": target.parent_pid, "pid": target.pid,
    }  # fmt: skip
    for reason in reasons:
        pattern, match, advice = next(
            ((each.pattern, match, text) for each, text in _ADVICE if (match := each.search(reason))),
            ("", None, _BY_HAND_ALONE),
        )
        if pattern.startswith(_SUPERVISED) and UnitPermission(True, never=NEVER_UNITS).against([target.unit]):
            advice = _JOB_OF_A_UNIT
        if forced and "ay --force" in advice:
            advice = _SHOWN_ANEW if pattern == _ENDS_OTHERS else _NOT_BY_FORCE
        found[advice.format_map(words | (match.groupdict() if match else {}))] = None
    return list(found)


class AdvisedOptions(NamedTuple):
    """Options of `gpuagent kill` that advice tells a person to add, or to leave out."""

    force: bool
    restart_unit: bool | None
    """Whether a unit is to be restarted; None where the advice leaves that as it is."""

    def __str__(self) -> str:
        force = "--force" if self.force else ""
        unit = {True: "--restart-unit", False: "a signal", None: ""}[self.restart_unit]
        return " and ".join(filter(None, (force, unit)))


def options_in(advice: Iterable[str]) -> AdvisedOptions | None:
    """Return the options that these lines advise, all together; None where they advise none."""
    text = " ".join(advice)
    unit = True if "Say --restart-unit" in text else False if "Leave out --restart-unit" in text else None
    found = AdvisedOptions("Say --force" in text, unit)
    return found if found != AdvisedOptions(False, None) else None


def advice_instead(
    advice: Iterable[str],
    options: AdvisedOptions,
    objections: Sequence[str],
    target: Target,
    config_file: str,
    *,
    forced: bool = False,
) -> list[str]:
    """Return what is left of the advice where these objections would meet the options that it names.

    `objections` are the refusals of the same process with those options; at least one. `forced` says that --force was
    given.
    """
    lines = [f"With {options} it would be refused too: {objections[0]}."]
    lines += [each for each in advice if options_in([each]) is None]
    lines += [each for each in advice_on(objections, target, config_file, forced=True) if options_in([each]) is None]
    if target.unit and options.restart_unit is not None:
        spared = runs_jobs(target.unit) or any("never-list" in each for each in objections)
        text = _JOB_ALONE if forced or spared else _JOB_BY_FORCE
        lines.append(text.format(unit=target.unit, pid=target.pid, file=config_file))
    return list(dict.fromkeys(lines))

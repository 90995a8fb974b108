"""Whom a remedy acts on, and what has to be the same before every step.

A pid is no identity, and neither is a start time alone: an exec changes neither (measured on Linux 6.18). So what the
choice was based on is compared as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import SHORT_ID, TICKS_PER_SECOND, JobSign, ProcessId, format_container

NO_SIGNALS = 0
CONFIRMED = "confirmed"
"""Evidence of more than one witness."""
_LIKE_AN_ID = re.compile(rf"[0-9a-f]{{{SHORT_ID},}}")
_ID = re.compile(r"[0-9a-f]{64}")
_DELETED = " (deleted)"
"""What the kernel adds to the link of an executable that an upgrade has replaced."""
KILL_BIT = 1 << (9 - 1)
MAX_TIED = 256
"""Beyond these a person cannot look through a list, and a container is for its runtime to end."""
CHANGES: Mapping[str, str] = {
    "uid": "its user has changed from {} to {}",
    "uids": "its user ids have changed from {} to {}",
    "name": "its name has changed from {!r} to {!r}",
    "cgroup": "its cgroup has changed from {} to {}",
    "cgroups": "it has been moved to another cgroup",
    "proven_names": "who can write to its cgroup has changed",
    "command_digest": "its command line has changed, or cannot be read: it may run another program",
    "executable": "its executable has changed from {} to {}",
    "executable_file": "its executable is another file",
    "image": "it has executed a program since",
    "process_group": "its process group has changed",
    "pid_namespace": "its pid namespace has changed from {} to {}",
    "handle_inode": "its pidfd is another one",
}
"""What is said of each fact of an identity, but for `id`, that is not as it was."""
_FOLLOWS = {"uids": "uid", "cgroups": "cgroup", "proven_names": "cgroup"}
"""What goes without saying beside another change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a process this one and no other, and this program and no other."""

    id: ProcessId
    uid: int
    name: str
    """`comm`, as the kernel has it."""
    command_digest: str
    """Digest of the raw command line, by a key of the node: line and plain digest may give secrets away.

    "" where it could not be read: state D, no memory. `image` then tells whether there was an exec.
    """
    cgroup: str
    executable: str | None = None
    """None where it may not be read: reading it needs CAP_SYS_PTRACE."""
    proven_names: frozenset[str] = frozenset()
    """Which of `unit`, `container` and `job` only root can have chosen, and `place` where all its cgroups are root's:
    see `gpuagent.procfs.cgroup_owner.Name`."""
    handle_inode: int = 0
    """Inode of the pidfd, where the kernel has pidfs: unique until the next boot. 0 is unknown."""
    process_group: int = 0
    """0 is unknown."""
    uids: tuple[int, ...] = ()
    """Real, effective, saved and file system user id."""
    pid_namespace: int = 0
    """Inode; 0 where it may not be read."""
    cgroups: bytes = b""
    """Its cgroup in every hierarchy, as /proc has it; b"" where it may not be read."""
    executable_file: tuple[int, ...] = ()
    """Mount and inode of the executable; () where it may not be read."""
    image: tuple[bytes, ...] = field(default=(), repr=False)
    """Where stack and arguments lie, random per exec, if the agent may trace the process; and the size of its code."""

    @property
    def compared(self) -> dict[str, object]:
        """All of it, by name, as it has to be so still: what is missing has to be missing again."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.executable is not None:
            found["executable"] = self.executable.removesuffix(_DELETED)
        return found


@dataclass(frozen=True, slots=True)
class TiedProcess:
    """A process that ends, is hung up, or is stopped for good when others end."""

    pid: int
    start_ticks: int
    names: tuple[str, ...]
    """Its `comm` first, then as `Facts.program_names`."""
    user: str
    belongs: bool
    """It is the own work of those: in the same container, by root's word; without one, of the same user, cgroups and
    login. A session at a terminal that they serve is a person's."""
    certain: bool = True
    """False where it only may be tied to them: that takes the right to trace it."""
    oom_score_adjust: int | None = None
    why: str = ""
    """How it is tied to them, in words that follow its name."""
    never_listed: str = ""
    """As `Facts.never_listed`."""
    is_stopped_by_unit: bool = False
    """It ends as systemd stops its unit once another one has ended."""
    restored: str = ""
    """As `Facts.restored`, where that is certain."""

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from every other process of this boot."""
        return self.pid, self.start_ticks

    def __str__(self) -> str:
        """For people and for the record."""
        why = f", {self.why}" if self.why else ""
        return f"{'' if self.certain else 'perhaps '}pid {self.pid} ({self.names[0]} of {self.user}{why})"


@dataclass(frozen=True, slots=True)
class Ties:
    """Everybody who ends, is hung up, or is stopped for good together with the processes that a step ends."""

    processes: tuple[TiedProcess, ...] = ()
    """Tied processes, at most one beyond `MAX_TIED`."""
    unseen: str = ""
    """Why they cannot be told; "" if these are all."""
    units: frozenset[str] = frozenset()
    """Services of which everybody else is among them, and the main process is none of those that the step ends."""


NO_TIES = Ties()
"""Those of a step that ends nobody."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What /proc tells of a process at this moment, read while a pidfd holds it."""

    identity: Identity
    state: str
    threads: int
    ending: bool = False
    """None of its threads is seen to live: what it runs and where is told no more."""
    parent_pid: int = 0
    user: str = ""
    """Name that the user database has for its uid at this moment; "" is unknown."""
    kernel_thread: bool = False
    oom_score_adjust: int | None = None
    uids: tuple[int, ...] = ()
    """Real, effective, saved and file system user ids, of all its threads; () is unknown."""
    program_names: tuple[str, ...] | None = ()
    """Its name, the path of its program, and the script that it runs, in all spellings; None where that cannot be
    seen."""
    never_listed: str = ""
    """Which entry of the operator's means it by a link, an argument or a virtual environment, or why that cannot be
    told; "" where none does."""
    thread_elsewhere: str = ""
    """That a thread of it is in another unit, container or job, or that this cannot be told; "" where none is."""
    root_user_namespace: bool | None = None
    """Whether its user ids are the host's own; None where that cannot be seen."""
    own_root: bool | None = None
    """Whether its root directory is another than the host's; None where that cannot be seen."""
    namespace_pids: tuple[int, ...] = ()
    """The pid in each namespace, the agent's first: more than one is a container's process."""
    users_container: bool = False
    """Whether the container that it is in, if any, is its user's own: by root's cgroups, and by who began it."""
    ties: Ties = field(default_factory=Ties)
    """Who ends with it and with those that fall with it; told of the one that was chosen."""
    ignored_signals: int = NO_SIGNALS
    caught_signals: int = NO_SIGNALS
    pending_signals: int = NO_SIGNALS
    wait_channel: str = ""
    """Where in the kernel it waits; for the report on one that cannot be killed."""
    frozen_by: str = ""
    """The cgroup that freezes it, which looks like a sleep; "" where none does."""
    held_by: str = ""
    """The cgroup of version 1 that freezes it, where SIGKILL stays pending too; "" where none does."""
    restored: str = ""
    """Why it was, or may have been, restored from a checkpoint; "" where nothing says so."""
    checkpointing: str = ""
    """Which program checkpoints or restores it at this moment; "" where none is seen to."""
    switches: int | None = None
    """How often it began to run (context switches): the same number again means the same sleep. None is unknown."""

    @property
    def end(self) -> str:
        """Why there is nobody to act on any more; "" for a process that lives."""
        if self.is_dead:
            return "it has ended and is a zombie: its parent has to reap it, and no signal helps"
        return "it is ending: the kernel takes it down already, and no signal hastens that" if self.ending else ""

    @property
    def is_dead(self) -> bool:
        """A zombie. One whose leader only has ended still has threads, lives, and holds everything."""
        return self.state in {"Z", "X"} and self.threads <= 1

    @property
    def contained(self) -> bool | None:
        """Whether it runs in a container, by the kernel's word; None where that cannot be seen.

        A pid namespace or a root of its own is one, whatever its cgroup is called.
        """
        if len(self.namespace_pids) > 1 or self.own_root:
            return True
        return None if self.own_root is None or not self.namespace_pids else False

    @property
    def is_namespace_init(self) -> bool:
        """The first process of a container: the kernel throws away signals that it does not catch, but SIGKILL."""
        return len(self.namespace_pids) > 1 and self.namespace_pids[-1] == 1

    def handles(self, number: int) -> bool:
        """Return whether the process has a handler for this signal, or ignores it."""
        return bool((self.caught_signals | self.ignored_signals) & 1 << (number - 1))

    def ignores(self, number: int) -> bool:
        """Return whether this signal will do nothing."""
        bit = 1 << (number - 1)
        if bit == KILL_BIT:
            return False
        return bool(self.ignored_signals & bit) or (self.is_namespace_init and not self.caught_signals & bit)


@dataclass(frozen=True, slots=True)
class Target:
    """A process on a GPU, as it was measured when it was chosen."""

    id: ProcessId
    key: MemoryKey
    gpu_index: int
    name: str
    uid: int
    user: str
    command: str
    """Redacted: for people and for comparison with a later reading of the same kind."""
    cgroup: str
    used_bytes: int
    kinds: str = ""
    unit: str = ""
    container_id: str = ""
    container_runtime: str = ""
    container_name: str = ""
    slurm_job: str = ""
    parent_pid: int = 0
    process_group: int = 0
    """What the kernel signals as one: a shell's job, or a server and its forks. 0 is unknown."""
    job_signs: tuple[JobSign, ...] = ()
    """What shows that it is part of a job: written by its user, and joins only what shows the same."""
    sm_ratio: float | None = None
    """SM utilization of the process itself; the device's is never taken for it."""
    slope_bytes_per_second: float | None = None
    leaking: bool = False
    evidence: str = ""
    """Evidence of the leak, by the detector's own word."""
    leak_confirmed: bool = False
    """Whether the leak has more than one witness."""
    driver_confirms: bool = False
    """The driver's own figures rise with the leak: it is not the app's word alone."""
    proven_names: frozenset[str] = frozenset()
    """Which of `unit`, `container`, `job` and `place` are root's word. Others are what somebody claims: they may keep a
    process from being acted on, and never permit it."""
    gpu_pci: str = ""
    """PCI address of the GPU that it was measured on: with the UUID it says which GPU that is. "" is unknown."""
    idle_seconds: float | None = None
    """How long every reading has observed it at 0 %, on every GPU that it is on; None if that is not known."""
    holder_proven: bool = True
    """Whether the memory is known to be its own: its number was not listed before it was there, or it shows life."""
    identity: Identity | None = None
    """What it was when a person's request was compared with what they were shown; None where a rule has chosen it."""

    def evidence_among(self, accepted: Collection[str], told: str | None) -> str:
        """Return the evidence of its leak, `confirmed` where that is accepted and holds.

        An alert that was told as `confirmed` is about no leak that has a single witness by now.
        """
        if self.leak_confirmed and CONFIRMED in accepted:
            return CONFIRMED
        return f"{self.evidence} without a second witness" if self.evidence and told == CONFIRMED else self.evidence

    @property
    def proven_unit(self) -> str:
        """Its systemd unit, "" where others than root may have put it there."""
        return self.unit if "unit" in self.proven_names else ""

    @property
    def proven_container_id(self) -> str:
        """Its container, "" where others than root may have chosen it: an id, or a name behind its runtime (`lxc/web`).

        It tells containers of all runtimes apart.
        """
        return self.container_id if "container" in self.proven_names else ""

    @property
    def proven_slurm_job(self) -> str:
        """The number of its Slurm job, "" where the process or its user may have chosen it."""
        return self.slurm_job if "job" in self.proven_names else ""

    @property
    def pid(self) -> int:
        """Its number, for people: never to be signaled by it."""
        return self.id.pid

    @property
    def container(self) -> str:
        """For people: its name, and the digits of its id that runtimes show; "" for none."""
        short = format_container(self.container_id)
        return f"{self.container_name} ({short})" if self.container_name else short

    @property
    def started_seconds(self) -> float:
        """Seconds since the boot, as CLOCK_BOOTTIME: whoever sets the wall clock makes nobody older or younger."""
        return self.id.start_ticks / TICKS_PER_SECOND


def names_container(wanted: str, container_id: str, container_name: str) -> bool:
    """Return whether this container is meant: by its id, by at least the 12 digits that runtimes show, or by its name.

    What looks like an id is never taken for a name: whoever starts a container may call it like the id of another. A
    bare name is one that a runtime with ids, or the kubelet, tells; containers that have a name for an id are meant
    with their runtime in front, as in `lxc/web`.
    """
    if not container_id or not wanted:
        return False
    if _LIKE_AN_ID.fullmatch(wanted):
        return _ID.fullmatch(container_id) is not None and container_id.startswith(wanted)
    return wanted in {container_id, container_name}


def may_be_named(wanted: Iterable[str], target: Target) -> bool:
    """Return whether one of these may be the name of the target's container, which is not known."""
    unnamed = _ID.fullmatch(target.container_id) is not None and not target.container_name
    return unnamed and any(not _LIKE_AN_ID.fullmatch(name) for name in wanted)


def differences(chosen: Identity, now: Identity) -> Iterator[str]:
    """Yield, in words, each thing that is not as it was: one is enough to leave the process alone."""
    handles = {chosen.handle_inode, now.handle_inode}
    if chosen.id != now.id or (len(handles) > 1 and 0 not in handles):
        yield f"pid {chosen.id.pid} is another process now"
        return
    before, after = chosen.compared, now.compared
    changed = {name for name in before if before[name] != after[name]}
    if "" in {chosen.command_digest, now.command_digest} and chosen.image == now.image and len(now.image) > 1:
        changed -= {"command_digest"}  # it could not be read each time (state D), and there was no exec
    for name, words in CHANGES.items():
        if name in changed and _FOLLOWS.get(name) not in changed:
            yield words.format(before[name], after[name])


def changes(before: Identity | Target, facts: Facts) -> list[str]:
    """Return why this is not what was chosen, or measured, any more: that it has ended is the one reason then."""
    now = facts.identity
    if facts.end and before.id == now.id:
        return [facts.end]
    return list(differences(before, now) if isinstance(before, Identity) else mismatches(before, now))


def mismatches(target: Target, now: Identity) -> Iterator[str]:
    """Yield as `differences`, between what was measured, or shown, and what is held at the start of a ladder."""
    if target.id != now.id:
        yield f"pid {target.pid} is another process now"
        return
    if target.identity is not None:
        yield from differences(target.identity, now)
        return
    yield from _changes(target, now)


def _changes(before: Target, now: Identity) -> Iterator[str]:
    if before.uid != now.uid:
        yield f"its user has changed from {before.uid} to {now.uid}"
    if before.name != now.name:
        yield f"its name has changed from {before.name!r} to {now.name!r}"
    if before.process_group and before.process_group != now.process_group:
        yield "its process group has changed"
    if before.cgroup and not now.cgroup:
        yield "its cgroup cannot be read now"
    elif before.cgroup and before.cgroup != now.cgroup:
        yield f"its cgroup has changed from {before.cgroup} to {now.cgroup}"
    elif before.proven_names != now.proven_names:
        yield "who can write to its cgroup has changed"

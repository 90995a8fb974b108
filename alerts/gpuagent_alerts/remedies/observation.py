"""The interfaces to the outside world: `Observer` reads the GPU again before every step, `ActionExecutor` acts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import LimitHolder
from gpuagent_alerts.remedies.safeguards.never_list import find_listed
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Facts, Target, Ties

SHARED_WAY_OUT = "to restart it all the same, name it in remedies.allow.shared_units, or run systemctl yourself"
"""What a refusal says about a unit that others use."""


Spared = Mapping[tuple[int, int], str]
"""Why a process must not end along with another one, by its pid and start (clock ticks since the boot)."""


class ProcessEnded(Exception):
    """The process that was meant has ended."""


class NotPermitted(Exception):
    """The agent lacks the right to do this (EPERM), or to see it."""


class Condition(StrEnum):
    """Whether the reason to act still holds."""

    HOLDS = "holds"
    OVER = "over"
    UNKNOWN = "unknown"
    """The data behind it is missing or old: nothing is done on it."""


class UnlistedGpu(NamedTuple):
    """A GPU of which this agent has never read a list of processes."""

    gpu_index: int
    gpu_uuid: str
    """"" where it is not known."""
    text: str
    """Which GPU it is and why it cannot be read, for people."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The GPU and the target on one fresh snapshot."""

    clock_seconds: float
    """CLOCK_BOOTTIME at which the GPU was read."""
    condition: Condition
    reason: str = ""
    """Why the condition is over or unknown."""
    target: Target | None = None
    """As it is measured now; None if it is not on the GPU any more."""
    target_listed: bool = False
    """The driver still counts memory for the pid, be it dead or alive."""
    gpu_used_bytes: int | None = None
    gpu_unattributed_bytes: int | None = None
    trusted: bool = True
    """False where the driver is known to shuffle its process list."""
    gpu_index_certain: bool = True
    """False where a GPU may be missing, now or since an earlier boot: those behind it have moved up."""
    host_pid_namespace: bool = True
    relatives: tuple[Target, ...] = ()
    """Others on the same GPU that belong to the target: same unit, container or job, or its children."""
    successors: tuple[Target, ...] = ()
    """Others on the same GPU that run what the target ran for the same parent, and were started after it."""
    members: tuple[Target, ...] = ()
    """Who falls with the target, by the scope that was asked for, on whichever GPU; also itself, on other GPUs."""
    apart: tuple[Target, ...] = ()
    """Who looks like a part of its job, and does not fall with it, as nothing shows that it is one."""
    present: frozenset[ProcessId] = frozenset()
    """Every process that holds memory of this GPU."""
    resumed: frozenset[ProcessId] = frozenset()
    """Processes that have left all GPUs and come back while the agent watched: see `resumed`."""
    choice: VictimChoice | None = None
    """Whom the alert would choose on this reading; None where the alert names its process, or a person does."""
    act_refusal: str = ""
    """Why nobody may be acted on by the figures of the GPUs that this is about; "" if nothing forbids it."""
    everybody: tuple[Target, ...] = ()
    """Every process on every GPU of the node, once for each place: who ends along with the target is among them. By
    the last good list of a GPU that cannot be read now."""
    act_refusals: Mapping[str, str] = field(default_factory=dict)
    """By UUID, why nobody may be acted on by the figures of a GPU: of all GPUs of the node that have a reason."""
    unlisted_gpus: tuple[UnlistedGpu, ...] = ()
    """GPUs of the node of which no list of processes was ever read: anybody may be on them."""
    unified_memory: bool = False
    """The GPU has no memory of its own: page cache that is dropped is memory for it."""
    unreadable: str = ""
    """Why the GPU cannot be read, where a person has forced a process of its last list; "" for every other."""

    def shows_less_than(self, before: Observation) -> bool:
        """Return whether the target or its GPU holds less than it did, or that cannot be told.

        Of a GPU that could be read neither time there is nothing to compare, and no reason to act that could be gone.
        """
        if self.unreadable and before.unreadable:
            return False
        if self.target is None or before.target is None or self.gpu_used_bytes is None or before.gpu_used_bytes is None:
            return True
        return self.target.used_bytes < before.target.used_bytes or self.gpu_used_bytes < before.gpu_used_bytes


class ProcessHandle(Protocol):
    """A process pinned by a pidfd: whatever happens to its pid, this is it. Has to be closed."""

    async def facts(self) -> Facts:
        """Read /proc, certain to be of this process.

        Raises:
            ProcessEnded: it has ended. A zombie whose threads live has not.
            NotPermitted: it may not be looked at.
        """
        ...

    def send(self, number: int) -> None:
        """Send a signal; 0 only asks whether that could be done.

        Raises:
            ProcessEnded: it has ended.
            NotPermitted: EPERM.
        """
        ...

    def has_ended(self) -> bool:
        """Return whether all of its threads have ended."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What a step came to."""

    ok: bool
    detail: str = ""
    errno: int = 0
    answer: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the app said, where it was asked; `released_bytes` is what the driver counts less since."""
    taken: bool = True
    """Whether something may have been done; False where that is sure not to be."""


@dataclass(frozen=True, slots=True)
class UnitPermission:
    """What the configuration and the request permit about ending a whole unit, container or job."""

    shared: bool = False
    """It may be restarted although other users' work or sessions run in it, or other units are restarted with it."""
    never: tuple[str, ...] = ()
    """Patterns of units, with or without `.service`, that are never restarted."""
    never_processes: tuple[str, ...] = ()
    """Patterns of names of processes that no restart may end: the never-list stands for everybody in the unit."""
    spared: Spared = field(default_factory=dict)
    """Processes on GPUs that must not end along with another one."""
    restored: bool = False
    """It may be ended although processes in it were restored from a checkpoint."""
    ending: Collection[ProcessId] = ()
    """Others whose end was asked for and who may live on: who falls only with them as well is counted too."""
    known_shared: tuple[str, ...] = ()
    """Patterns of units that run other people's work even where it cannot be told from the unit's own."""

    def against(self, names: Iterable[str]) -> str:
        """Return why a unit with these names must not be restarted, whatever runs in it; "" if it may."""
        for name in sorted(names):
            spellings = (name.removesuffix(".service"), name)
            if listed := find_listed(spellings, self.never):
                return f"{name} is on the never-list ({listed.pattern}): others depend on it"
            known = find_listed(spellings, self.known_shared)
            if known and not self.shared:
                return f"{name} runs other people's work ({known.pattern}); {SHARED_WAY_OUT}"
        return ""


class NotPossibleHere(str):
    """A refusal that is nobody's fault: the step cannot be taken here, and is passed over where another follows it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LimitAsk:
    """What a `limit` step goes by besides its target."""

    everybody: tuple[Target, ...]
    """Every process on every GPU: those of the same cgroup and GPU share the limit."""
    holder: LimitHolder
    rehearse: bool


class ActionExecutor(Protocol):
    """The only way from a remedy to a process."""

    def pin(self, target: Target) -> ProcessHandle:
        """Open a pidfd.

        Raises:
            ProcessEnded: there is no such process.
            NotPermitted: out of descriptors, or a kernel without pidfds.
        """
        ...

    def protected(self) -> frozenset[int]:
        """Return the agent itself and its ancestors."""
        ...

    def is_alive(self, identity: ProcessId) -> bool:
        """Return whether this very process has not ended; where that cannot be told, it has not."""
        ...

    async def tied_to(
        self, targets: Sequence[Target], ending: Collection[ProcessId] = (), *, with_units: bool = False
    ) -> Ties:
        """Return who else ends, is hung up, or is stopped for good when all of these end.

        `ending` are others whose end is asked for, or was: who ends only if these end too is among them. `with_units`
        counts everybody in their services too, which may fail with one of their processes.
        """
        ...

    async def notify(self, target: Target, reason: str, deadline_seconds: float) -> ActionResult:
        """Tell the receivers and, where it has a client, the app: so much time is left to drain."""
        ...

    async def release_cache(self, target: Target, deadline_seconds: float, *, collect: bool = False) -> ActionResult:
        """Have the app empty its allocator's cache; `collect` runs Python's garbage collector first."""
        ...

    async def drop_caches(self, step: RemedyStep, *, rehearse: bool) -> ActionResult:
        """Have the kernel drop page cache; with `rehearse` only tell how much that would be."""
        ...

    async def limit(self, step: RemedyStep, target: Target, permission: UnitPermission, ask: LimitAsk) -> ActionResult:
        """Limit the GPU memory of the target's cgroup to what it holds and the step's headroom.

        Raises:
            ActionRefused: that is not permitted, or the driver or the helper refuses.
            ProcessEnded: the target has ended.
        """
        ...

    async def reset(self, target: Target, deadline_seconds: float) -> ActionResult: ...

    async def group_refusal(self, step: RemedyStep, target: Target, permission: UnitPermission) -> str:
        """Return why the step must not act on the target's whole unit, container or job now; "" if it may or does not.

        For a unit that is its start limit too. Raises ProcessEnded where the target has ended.
        """
        ...

    async def container_refusal(self, target: Target) -> str:
        """Return why the runtime's own word speaks against the target's container id; "" if it agrees or is not asked.

        Where the configuration permits no question (`processes.container_socket`), the cgroup's owners have to do.
        """
        ...

    async def restart_unit(self, target: Target, permission: UnitPermission, deadline_seconds: float) -> ActionResult:
        """Restart the target's unit, after a last look whether that is permitted.

        Raises:
            ActionRefused: it is not, or not any more.
            ProcessEnded: the target has ended.
        """
        ...

    async def execute(self, step: RemedyStep, target: Target, permission: UnitPermission) -> ActionResult:
        """Run the program of the step, after a last look at all whom its arguments hand over. Raises ActionRefused."""
        ...


class Observer(Protocol):
    """Observes targets on fresh readings."""

    def observe(self, target: Target, alert: str, scope: str = "process") -> Observation:
        """Return the newest observation; `alert` is a fingerprint, or "" for what a person asked for."""
        ...

    async def next_observation(
        self,
        target: Target,
        alert: str,
        after: float,
        deadline_seconds: float,
        *,
        evaluated: bool = True,
        scope: str = "process",
    ) -> Observation | None:
        """Return the first in which the GPU was read after `after` (CLOCK_BOOTTIME); None if none came in time.

        With `evaluated` the rules have been evaluated since, too: what a decision needs, and what watching does not. A
        rule that is evaluated less often than the deadline is waited for.
        """
        ...


@dataclass(frozen=True, slots=True)
class RemedyRequest:
    """Who asked for a run, and why, as the audit log records it."""

    alert: str = ""
    """Fingerprint of the alert; "" where a person asked."""
    alertname: str = ""
    expression: str = ""
    value: float = float("nan")
    labels: dict[str, str] = field(default_factory=dict)
    asked_by: str = "rule"
    forced: bool = False
    """A person has lifted the allow list; the never-list stands."""
    victim: str = ""
    """The policy that chose the process, where the alert names none."""
    passed_over: frozenset[ProcessId] = frozenset()
    """Those before it in the ranking that root's allow list does not name."""
    values: tuple[float, ...] = ()
    """What the expression gave over the window, oldest first."""
    about_growth: bool = False
    """The rule goes by what the leak detector says: the process must have a leak of its own, with the evidence."""
    idle_for_seconds: float | None = None
    """How long the process must have been at rest by the agent's own observation, where the rule is true because it or
    its GPU does not work: the rule's `for`, or `remedies.idle_for` where that is longer. None for any other rule."""
    shown: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of those that the person was shown as ending together with the process."""
    together: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of those whose end the person has asked for at the same time: all are judged as ending."""

    @property
    def by_hand(self) -> bool:
        """A person asked for it, and no alert."""
        return not self.alert

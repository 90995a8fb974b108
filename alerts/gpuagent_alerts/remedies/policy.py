"""Who may be acted on. In doubt nobody, and the reason is said in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gpuagent.units import format_bytes
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import Facts, Target, names_container
from gpuagent_alerts.remedies.world import Order, Sight

NEVER = (
    # What the machine stands on
    "init", "systemd", "systemd-*", "(sd-*", "dbus-daemon", "dbus-broker*", "sshd", "sshd-*", "agetty", "login",
    # Displays: ending one ends a person's session
    "Xorg", "X", "Xwayland", "gnome-shell", "gnome-session*", "gdm*", "kwin_*", "plasmashell", "sddm*", "lightdm*",
    "weston", "sway", "mutter*", "cosmic-comp",
    # Container runtimes and what runs jobs
    "dockerd", "containerd*", "docker-init", "runc*", "crun*", "conmon*", "crio", "podman", "buildkitd", "kubelet",
    "kube-*", "slurmd", "slurmstepd*", "slurmctld", "raylet", "gcs_server",
    # NVIDIA's own: without the fabric manager, or with a killed MPS server, a whole node of jobs is lost
    "nvidia-persist*", "nv-fabricmanage*", "nv-hostengine", "dcgm*", "nvidia-cuda-mps*", "nvidia-imex*", "nvsm*",
    # The agent
    "gpuagent*",
)  # fmt: skip
"""Names (`comm` has 15 bytes) of what is never acted on. A process that gives itself such a name is safe too."""

NEVER_UNITS = (
    *NEVER, "user@*", "getty@*", "serial-getty@*", "ssh", "ssh@*", "dbus*", "polkit*", "cron", "crond", "atd", "docker",
    "crio*", "cri-*", "podman*", "k3s*", "rke2*", "microk8s*", "snap.microk8s*", "munge", "nomad", "ray",
    "raylet*", "display-manager", "nvidia-*", "NetworkManager", "libvirtd", "virtqemud",
)  # fmt: skip
"""Units (without `.service`) that are never restarted: they run others' processes, or the node stands on them."""

_UNKILLABLE_SCORE = -1000
"""`oom_score_adj` of what even the kernel spares."""
_SPARING = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals whose default is not the end of the process, or its standstill."""
_USERS_OWN_MANAGER = re.compile(r"user@\d+\.service/")


@dataclass(frozen=True, slots=True)
class Allow:
    """All that are given must hold; with no name at all, nothing is allowed."""

    users: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs."""
    min_age_seconds: float = 0.0
    min_memory_bytes: int = 0

    @property
    def names_nobody(self) -> bool:
        """No user, unit, command or container: a GPU alone is no permission."""
        return not (self.users or self.units or self.commands or self.containers)


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

    def refusals(
        self, step: Step, order: Order, sight: Sight, facts: Facts, now_seconds: float, protected: frozenset[int]
    ) -> Iterator[str]:
        """Every reason against this step on what `sight` and `facts` show, most basic first.

        `now_seconds` is CLOCK_BOOTTIME.
        """
        target = sight.target
        if target is None:
            yield "it is no longer on the GPU"
            return
        yield from _in_doubt(sight)
        yield from self._never(target, facts, protected)
        yield from _beyond_reach(facts)
        if "M" in target.kinds and step.disrupts and not self.mps_clients:
            yield "it is a client of MPS: ending one can harm the others (remedies.mps_clients permits it)"
        if not (order.forced or self._may_be_asked_by_hand(step, order)):
            yield from self._not_allowed(target, now_seconds)
        yield from self._evidence(step, order, target)
        yield from self._wrong_step(step, target, facts)

    def _never(self, target: Target, facts: Facts, protected: frozenset[int]) -> Iterator[str]:
        if target.pid <= 1 or target.pid in protected:
            yield "it is the agent itself or one of its ancestors"
        if facts.kernel_thread:
            yield "it is a kernel thread"
        if facts.oom_score_adjust == _UNKILLABLE_SCORE:
            yield "it is protected from the kernel's own killer (oom_score_adj -1000)"
        names = {facts.identity.name, target.name}
        if facts.identity.executable:
            names.add(facts.identity.executable.removesuffix(" (deleted)").rpartition("/")[2])
        for name in sorted(names):
            pattern = next((each for each in (*NEVER, *self.never) if fnmatchcase(name, each)), None)
            if pattern is not None:
                yield f"{name} is on the never-list ({pattern})"
                return

    def _may_be_asked_by_hand(self, step: Step, order: Order) -> bool:  # noqa: ARG002  every step alike
        """Return whether a person's word is enough: where no allow list is given. One that is given is kept to."""
        return order.by_hand and self.allow == Allow()

    def _not_allowed(self, target: Target, now_seconds: float) -> Iterator[str]:
        allow = self.allow
        if allow.names_nobody:
            yield "nothing is allowed: remedies.allow names no users, units, commands or containers"
            return
        given = (
            ("users", allow.users, target.user),
            ("units", allow.units, target.unit),
            ("commands", allow.commands, target.name),
        )
        for key, names, value in given:
            if names and value not in names:
                yield f"{value or 'nothing'} is not in remedies.allow.{key}"
        if allow.containers and not any(
            names_container(name, target.container_id, target.container_name) for name in allow.containers
        ):
            yield f"container {target.container or '(none)'} is not in remedies.allow.containers"
        if target.container_id and not allow.containers:
            yield f"it runs in container {target.container}, and remedies.allow.containers names none"
        if allow.gpus and str(target.gpu_index) not in allow.gpus and target.key.gpu_uuid not in allow.gpus:
            yield f"GPU {target.gpu_index} is not in remedies.allow.gpus"
        age = max(now_seconds - target.started_seconds, 0.0)
        if age < allow.min_age_seconds:
            yield f"it is {age:.0f} s old, younger than remedies.allow.min_age"
        if target.used_bytes < allow.min_memory_bytes:
            yield f"it holds {format_bytes(target.used_bytes)}, less than remedies.allow.min_memory"

    def _evidence(self, step: Step, order: Order, target: Target) -> Iterator[str]:
        chosen_as_leak = order.victim == "leaking"
        is_leak = bool(order.labels.get("evidence")) or order.alertname == "GpuProcessMemoryLeak" or chosen_as_leak
        if not step.disrupts or not is_leak:
            return
        evidence = target.evidence if chosen_as_leak else order.labels.get("evidence", "")
        if evidence not in self.evidence:
            wanted = " or ".join(self.evidence)
            yield f"the evidence of the leak is {evidence or 'unknown'}, and {step} needs {wanted} (remedies.evidence)"

    def _wrong_step(self, step: Step, target: Target, facts: Facts) -> Iterator[str]:
        if step.kind is Kind.RESTART_UNIT:
            yield from _no_restart(target, self.never)
        elif step.kind is Kind.EXEC:
            yield from _nothing_to_fill_in(step, target)
        elif target.unit and not target.container_id and _would_end(step, facts):
            yield f"systemd supervises it ({target.unit}): a bare {step} could leave it down; use restart_unit"


def _in_doubt(sight: Sight) -> Iterator[str]:
    if not sight.host_pid_namespace:
        yield "the agent is not in the host's pid namespace: the driver's pids are not its own"
    if not sight.trusted:
        yield "this driver is known to shuffle its process list (535.43 to 535.98)"


def _beyond_reach(facts: Facts) -> Iterator[str]:
    if facts.is_dead:
        yield "it is a zombie: its parent has to reap it, and no signal helps"
    elif facts.state == "D":
        where = f" in {facts.wait_channel}" if facts.wait_channel not in {"", "0"} else ""
        yield f"it is in uninterruptible sleep (state D){where}: no signal reaches it now"


def _no_restart(target: Target, never: tuple[str, ...]) -> Iterator[str]:
    if not target.unit:
        yield "no systemd unit runs it: there is nothing to restart"
    elif _USERS_OWN_MANAGER.match(target.unit):
        yield f"{target.unit} belongs to a user's own manager, which only that user may command"
    else:
        stem = target.unit.removesuffix(".service")
        pattern = next((each for each in (*NEVER_UNITS, *never) if fnmatchcase(stem, each)), None)
        if pattern is not None:
            yield f"{target.unit} is on the never-list ({pattern}): others depend on it"


def _nothing_to_fill_in(step: Step, target: Target) -> Iterator[str]:
    """`docker restart` with an empty name is another command."""
    places = {"{container_id}": target.container_id, "{slurm_job}": target.slurm_job}
    for place, value in places.items():
        if not value and any(place in argument for argument in step.command):
            yield f"{step} needs {place}, and the process has none"


def _would_end(step: Step, facts: Facts) -> bool:
    """SIGTERM and SIGKILL by intent; another signal where the process does not handle it and the default is to end."""
    if step.kind in {Kind.TERMINATE, Kind.KILL}:
        return True
    number = step.sends
    return number is not None and number not in _SPARING and not facts.handles(number)

"""What no remedy acts on, whatever the configuration says: patterns of names and paths, with `*` for any rest.

That a process gives itself such a name keeps it from being acted on, and makes nobody else a target.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from gpuagent.core.identity import COMM_BYTES
from gpuagent_alerts.remedies.target import Target

NEVER = (
    # What the machine stands on
    "init", "systemd", "systemd-*", "(sd-*", "dbus-daemon", "dbus-broker*", "sshd", "sshd-*", "agetty", "login",
    # Displays: ending one ends a person's session. What listens as one is known without its name where that can be
    # seen (facts/displays.py)
    "X", "Xorg*", "Xwayland*", "Xvnc*", "Xtigervnc", "Xtightvnc", "Xrealvnc", "Xkasm*", "Xvfb", "Xephyr", "Xnest",
    "Xdcv", "Xspice", "Xdummy", "Xwin", "Xquartz",
    # Compositors and window managers, most of which lead the session
    "gnome-shell*", "gnome-session*", "mutter*", "kwin*", "plasmashell", "startplasma*", "ksmserver", "cinnamon*",
    "muffin", "xfwm4", "xfce4-session", "marco", "mate-session", "compiz*", "cosmic-*", "enlightenment*",
    "budgie-wm", "gala", "deepin-kwin*", "lxqt-session", "lxsession", "weston*", "sway", "Hyprland*", "hyprland*",
    "labwc", "wayfire", "niri", "river", "cage", "gamescope*", "dwl", "phoc", "mir_*", "miriway*", "openbox*",
    "fluxbox", "i3", "awesome", "bspwm", "dwm", "xmonad*", "qtile", "herbstluftwm", "icewm*", "fvwm*",
    # Logins at a display
    "gdm*", "sddm*", "lightdm*", "lxdm*", "xdm", "greetd", "nodm", "xinit",
    # Remote desktops
    "dcv*", "nxagent", "nxserver*", "nxnode*", "x2go*", "xpra*", "Xpra", "xrdp*", "x11vnc", "x0vnc*", "vncserver*",
    "wayvnc", "krfb", "krdp*", "vino-server", "gnome-remote-d*", "chrome-remote-*", "rustdesk*", "anydesk*",
    "teamviewer*", "sunshine", "selkies*",
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
    "raylet*", "display-manager", "nvidia-*", "NetworkManager", "libvirtd", "virtqemud", "lxd*", "incus*", "snap.lxd*",
)  # fmt: skip
"""Units (without `.service`) that are never restarted: they run others' processes, or the node stands on them."""

SHARED_UNITS = (
    "jupyterhub*", "rstudio-server*", "rserver*", "xrdp*", "gitlab-runner*", "actions.runner.*", "buildkite-agent*",
    "jenkins*", "condor*", "htcondor*", "pbs*", "torque*", "sge*", "lsf*", "supervisor", "supervisord",
)  # fmt: skip
"""Units (without `.service`) that run others' jobs or sessions, maybe all under one user, where no look can tell."""

_USERS_OWN_MANAGER = re.compile(r"user@\d+\.service/")
JOB_DAEMONS = frozenset({"cron.service", "crond.service", "cronie.service", "atd.service"})
"""Units that start the jobs of users, in their own cgroup where no PAM module moves them, and go on when one ends."""
JOB_STARTERS = frozenset({
    "systemd", "sshd", "sshd-session", "sshd-auth", "cron", "crond", "atd", "login", "gdm", "gdm3",
    "gdm-session-worker", "sddm", "sddm-helper", "lightdm", "xdm", "lxdm", "xrdp", "xrdp-sesman", "xrdp-sesexec",
    "dockerd", "containerd", "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2", "crio", "kubelet",
    "kubelite", "k3s", "rke2", "nomad", "libvirtd", "virtqemud", "lxd", "incusd", "slurmd", "slurmstepd",
    "condor_master", "condor_schedd", "condor_shadow", "condor_startd", "condor_starter", "pbs_mom", "sge_execd",
    "sbatchd", "rserver", "gitlab-runner",
})  # fmt: skip
"""Files of programs that root runs as the main process of a unit, and that go on when a job or session ends."""
JOB_STARTER_SCRIPTS = frozenset({"jupyterhub", "jupyterhub.app", "supervisord"})
"""Scripts and modules of Python likewise."""

UNKILLABLE_SCORE = -1000
"""`oom_score_adj` of what even the kernel spares."""
_SHOWN = 128


class Listed(NamedTuple):
    """A name, and the pattern that it fits."""

    name: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.shown} is on the never-list ({self.pattern})"

    @property
    def shown(self) -> str:
        """The part of the name that fits, fit to be shown: processes write their own."""
        return show_name(self.name if "/" in self.pattern else self.name.rpartition("/")[2])


def show_name(name: str) -> str:
    """Return a name or path fit to be shown: bounded, and printable."""
    return (name if name.isprintable() else ascii(name))[:_SHOWN]


def find_listed(names: Iterable[str], patterns: Iterable[str], *, exact: bool = False) -> Listed | None:
    """Return the first of the names that fits one of the patterns, None for none.

    This is the one place that asks the never-list, of a process, a program's path, a script or a unit. A pattern with a
    slash is compared with whole paths; any other with the last part of a path, without regard to case unless `exact`. A
    name of 15 bytes may have been cut by the kernel, and fits what a longer pattern begins with.
    """
    patterns = tuple(patterns)
    return next((Listed(name, each) for name in names for each in patterns if name and _fits(name, each, exact)), None)


def _fits(name: str, pattern: str, exact: bool) -> bool:
    if "/" in pattern:
        return matches(name, pattern)
    last = name.rpartition("/")[2]
    if _fits_name(last, pattern, exact):
        return True
    raw = last.encode("utf-8", "surrogateescape")
    cut = pattern.encode("utf-8", "surrogateescape")[:COMM_BYTES]
    return len(raw) == COMM_BYTES and _fits_name(last, cut.decode("utf-8", "surrogateescape"), exact)


def _fits_name(name: str, pattern: str, exact: bool) -> bool:
    return matches(name, pattern) or (not exact and matches(name.lower(), pattern.lower()))


def is_pattern(entry: str) -> bool:
    """Return whether an entry means more than itself."""
    return "*" in entry


def matches(text: str, pattern: str) -> bool:
    """Return whether a text is what a pattern means: `*` stands for any text, slashes too, and all else for itself.

    `[` and `?` are characters of names. A shell takes them for more, but then an entry would not mean the file that it
    names.
    """
    return text == pattern if "*" not in pattern else fnmatchcase(text, _literal_but_star(pattern))


@lru_cache(maxsize=1024)
def _literal_but_star(pattern: str) -> str:
    return pattern.replace("[", "[[]").replace("?", "[?]")


def is_supervised(target: Target, supervisors: Collection[str] = ()) -> bool:
    """Return whether systemd of the system runs it as its own: with a bare signal it could stay down.

    A user's own manager does so for the user alone. A job of cron or at ends without the daemon, which runs as root and
    is systemd's own child; a job or session of a unit that runs others' is another user's child of the daemon. Of the
    units in `supervisors` root says that their main process starts the work of others, as any user.
    """
    if not target.unit or target.proven_container_id or is_users_own(target):
        return False
    if target.proven_unit in supervisors:
        return target.parent_pid <= 1
    if target.unit in JOB_DAEMONS:
        return target.uid == 0 and target.parent_pid <= 1
    return not runs_jobs(target.unit) or target.uid == 0 or target.parent_pid <= 1


def runs_jobs(unit: str) -> bool:
    """Return whether a unit has the name of one that runs the jobs or sessions of others in its own cgroup."""
    return unit in JOB_DAEMONS or find_listed((unit, unit.removesuffix(".service")), SHARED_UNITS) is not None


def is_users_own(target: Target) -> bool:
    """Return whether a user's own manager runs it: systemd of the system knows no such unit and brings nothing back."""
    return _USERS_OWN_MANAGER.match(target.unit) is not None

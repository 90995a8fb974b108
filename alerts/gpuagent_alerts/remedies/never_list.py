"""What no remedy acts on, whatever the configuration says: patterns of names (fnmatch).

That a process gives itself such a name keeps it from being acted on, and makes nobody else a target.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

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

SHARED_UNITS = (
    "jupyterhub*", "rstudio-server*", "rserver*", "xrdp*", "gitlab-runner*", "actions.runner.*", "buildkite-agent*",
    "jenkins*", "condor*", "htcondor*", "pbs*", "torque*", "sge*", "lsf*",
)  # fmt: skip
"""Units (without `.service`) that run others' jobs or sessions, maybe all under one user, where no look can tell."""

UNKILLABLE_SCORE = -1000
"""`oom_score_adj` of what even the kernel spares."""


def pattern_for(name: str, patterns: Iterable[str]) -> str:
    """Return the first of the patterns that a name fits, "" for none."""
    return next((each for each in patterns if fnmatchcase(name, each)), "")

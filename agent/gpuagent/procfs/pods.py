"""Names of pods by uid, from the folders that the kubelet keeps for their logs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpuagent.core.clock import Clock

RESCAN_SECONDS = 30.0
_PARTS = 3


class PodName(NamedTuple):
    """A pod as its users know it; "" is unknown."""

    namespace: str = ""
    name: str = ""


class PodNames:
    """Finds pods in `/var/log/pods/<namespace>_<name>_<uid>/`.

    The API server is not asked: no token, no network, and right while it is down. Neither a
    namespace nor a pod may have an underscore in its name (RFC 1123), and the uid of a static pod
    is the hash that its cgroup bears too. Source: kubernetes `pkg/kubelet/kuberuntime/helpers.go`,
    BuildPodLogsDirectory.
    """

    def __init__(self, clock: Clock, root: str = "/var/log/pods") -> None:
        self._clock = clock
        self._root = root
        self._names: dict[str, PodName] = {}
        self._scanned: float | None = None

    def lookup(self, uid: str) -> PodName:
        """Name the pod; both names are empty where it is not known.

        An unknown uid makes it look again, but not more often than every 30 seconds.
        """
        if uid not in self._names and self._may_scan():
            self._scanned = self._clock.now()
            self._names = self._scan()
        return self._names.get(uid, PodName())

    def _may_scan(self) -> bool:
        return self._scanned is None or self._clock.now() - self._scanned >= RESCAN_SECONDS

    def _scan(self) -> dict[str, PodName]:
        try:
            folders = [folder.name for folder in Path(self._root).iterdir()]
        except OSError:
            return {}  # no Kubernetes here, or no right to look
        parts = (folder.split("_") for folder in folders)
        return {part[2]: PodName(part[0], part[1]) for part in parts if len(part) == _PARTS}

"""Find the names of pods and containers: in the kubelet's log folders, and from a container runtime that may be asked.

A cgroup tells the ids alone. A name is for people and for configurations, and is chosen by whoever starts the
container.

docker, or podman in its place, is asked over its unix socket: Docker Engine API, `GET /containers/{id}/json`
(https://docs.docker.com/reference/api/engine/); podman serves the same (`podman system service`). containerd's own
interface is gRPC and is not spoken here.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.api_client import AgentUnreachable, request
from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import CollectorRun
from gpuagent.procfs.files import printable

RESCAN_SECONDS = 30.0
"""Seconds between two scans of the links, and before a runtime is asked again that did not answer or did not know."""
_PARTS = 3


class PodName(NamedTuple):
    """A pod as its users know it; "" is unknown."""

    namespace: str = ""
    name: str = ""


class PodNames:
    """Find names of pods in `/var/log/pods/<namespace>_<name>_<uid>/`.

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


log = logging.getLogger(__name__)

KNOWN_SECONDS = 60.0
"""Seconds for which a runtime's answer is cached: a container can be renamed."""
_KEPT = 4096
_WAITING = 1024
_ID = re.compile(r"[0-9a-f]{64}")
# kubernetes pkg/kubelet/kuberuntime/legacy.go: none of the three names may have an underscore in it.
_LINK = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log")

Ask = Callable[[str], str]
"""The name of a container by its id, "" for one that the runtime does not know. Raises OSError: it cannot be asked."""


class ContainerNames:
    """For any thread. A tick is never held up: a runtime is asked by a thread of its own, and known later."""

    def __init__(self, clock: Clock, *, ask: Ask | None = None, links: str = "/var/log/containers") -> None:
        """Without `ask` only Kubernetes' containers have names."""
        self._clock = clock
        self._ask = ask
        self._links = links
        self._lock = threading.Lock()
        self._names: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Name by id, and until when it is believed: for ever of the kubelet's, which renames none."""
        self._tried: OrderedDict[str, float] = OrderedDict()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._scanned: float | None = None
        self._quiet_until = 0.0
        self._problem = ""
        self._asking = False

    def lookup(self, container_id: str) -> str:
        """Return the name, `namespace/pod/container` in Kubernetes; "" where it is not known (yet)."""
        with self._lock:
            now = self._clock.now()
            name, until = self._names.get(container_id, ("", 0.0))
            if name:
                if now >= until:
                    self._want(container_id, now)  # what was known is shown until there is an answer
                return name
            if not _ID.fullmatch(container_id):
                return ""
            if self._scanned is None or now - self._scanned >= RESCAN_SECONDS:
                self._scanned = now
                self._scan()
            if container_id in self._names:
                return self._names[container_id][0]
            self._want(container_id, now)
            return ""

    def runs(self) -> tuple[CollectorRun, ...]:
        """Return how asking a runtime fared when it was last tried; nothing where none is asked."""
        return (CollectorRun("container_names", not self._problem, 0.0, self._problem),) if self._ask else ()

    def _scan(self) -> None:
        try:
            links = [_LINK.fullmatch(path.name) for path in Path(self._links).iterdir()]
        except OSError:  # no Kubernetes here, or no right to look
            return
        for link in filter(None, links):
            pod, namespace, container, container_id = link.groups()
            self._store(container_id, f"{namespace}/{pod}/{container}", math.inf)

    def _want(self, container_id: str, now: float) -> None:
        """Have it asked for, if it has not been lately."""
        if self._ask is None or now < self._quiet_until or len(self._waiting) >= _WAITING:
            return
        tried = self._tried.get(container_id)
        if tried is not None and now - tried < RESCAN_SECONDS:
            return
        self._waiting[container_id] = None
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._ask_for_all, args=(self._ask,), name="container names", daemon=True).start()

    def _ask_for_all(self, ask: Ask) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._asking = False
                    return
                container_id, _ = self._waiting.popitem(last=False)
                self._tried[container_id] = self._clock.now()
                while len(self._tried) > _KEPT:
                    self._tried.popitem(last=False)
            try:
                name = ask(container_id)
            except OSError as error:
                if not self._problem:  # it is tried again as long as there are containers: said once
                    log.warning("containers have no names: the runtime cannot be asked: %s", error)
                with self._lock:
                    self._problem = str(error)
                    self._waiting.clear()
                    self._quiet_until = self._clock.now() + RESCAN_SECONDS
                continue
            with self._lock:
                answers_again, self._problem = bool(self._problem), ""
                if name:
                    self._store(container_id, name, self._clock.now() + KNOWN_SECONDS)
                else:
                    self._names.pop(container_id, None)
            if answers_again:
                log.info("containers have names again: the runtime answers")

    def _store(self, container_id: str, name: str, until: float) -> None:
        self._names[container_id] = name, until
        self._names.move_to_end(container_id)
        while len(self._names) > _KEPT:
            self._names.popitem(last=False)


_TIMEOUT_SECONDS = 2.0
_NAME_LIMIT_BYTES = 255
_OK, _NOT_FOUND = 200, 404


def docker_names(socket: Path) -> Callable[[str], str]:
    """Return what `ContainerNames` asks with."""

    def ask(container_id: str) -> str:
        return _name(_inspect(socket, container_id))

    return ask


class RunningContainer(NamedTuple):
    """What the runtime says of a container that runs."""

    main_pid: int
    """Pid of the main process in the host's pid namespace."""
    name: str
    """"" for none."""


def docker_container(socket: Path, container_id: str) -> RunningContainer | None:
    """Ask the runtime about a container; None if it knows no such running one.

    Raises OSError where the runtime cannot be asked.
    """
    document = _inspect(socket, container_id)
    state = document.get("State")
    pid = state.get("Pid") if isinstance(state, dict) else None
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
        return None
    return RunningContainer(pid, _name(document))


def _inspect(socket: Path, container_id: str) -> dict[str, object]:
    """Return what the runtime says of a container; {} where it knows none, or speaks of another. Raises OSError.

    Only root's runtime and the agent's own user's is asked: its answer decides who is allowed, and who is ended.
    """
    try:
        path = f"/containers/{container_id}/json"
        status, body = request(socket, "GET", path, _TIMEOUT_SECONDS, peer_uids={0, os.geteuid()})
    except AgentUnreachable as error:  # nobody there, or no right to the socket
        raise OSError(str(error)) from None
    if status == _NOT_FOUND:
        return {}
    if status != _OK:
        raise OSError(f"{socket}: HTTP {status}")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and document.get("Id") == container_id else {}


def _name(document: dict[str, object]) -> str:
    """Return the name without docker's slash, "" for none."""
    name = document.get("Name")
    return printable(name.removeprefix("/"), _NAME_LIMIT_BYTES) if isinstance(name, str) else ""

"""The clients' door of this machine, by the configuration."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from gpuagent.clients.door import ClientDoor
from gpuagent.clients.hub import MOST_WAITING, Hub, Limits
from gpuagent.clock import Clock
from gpuagent.procfs.boot import boot_time_seconds
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.namespace import own_namespace
from gpuagent.procfs.pods import PodNames
from gpuagent.procfs.reader import Boot, ProcessReader
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames

if TYPE_CHECKING:
    from gpuagent.config.models import Config


def client_door(config: Config, clock: Clock, boot_id: str) -> ClientDoor:
    """Over the machine's own /proc, also where the GPUs are simulated: apps that connect are real."""
    files = RealProc()
    reader = ProcessReader(
        files,
        Boot(boot_id, boot_time_seconds(), own_namespace()),
        users=UserNames(clock),
        redactor=Redactor(config.processes.redact),
        command=config.processes.command,
        pods=PodNames(clock),
    )
    hub = Hub(clock, reader, files, limits_of(config))
    hub.interval_seconds = config.clients.interval
    return ClientDoor(hub, config.client_dir, clock)


def limits_of(config: Config) -> Limits:
    """What apps may cost, by the configuration and by the descriptors that the agent may open.

    A connection takes two, its socket and a pidfd. Apps get a quarter of the descriptors at most, and connections that
    have not said hello a sixteenth: the rest is for /proc, pidfds of processes on GPUs, and HTTP.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(
        max_connections=max(1, min(config.clients.max_connections, descriptors // 8)),
        max_connections_per_user=config.clients.max_connections_per_user,
        max_waiting=max(1, min(MOST_WAITING, descriptors // 32)),
    )

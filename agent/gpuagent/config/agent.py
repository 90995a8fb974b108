"""How the agent itself works: its doors, its log, what it reads and what it shows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuagent.config.section import Section
from gpuagent.config.values import CgroupPath, Duration, FilePath, HostPattern, Pattern, Size


class Clients(Section):
    """Apps with the embedded client, at the socket in `client_dir`."""

    interval: Duration = Field(
        default=1.0, ge=0.2, le=60, description="How often apps are asked to tell their allocator's figures."
    )
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=10_000,
        description="Apps at a time, as far as an eighth of the descriptors that the agent may open allows. When all "
        "places are taken, the user with the most gives one up to a user that has fewer, or to a process on a GPU; "
        "others are refused, and try again later.",
    )
    max_connections_per_user: int = Field(
        default=512,
        ge=1,
        le=10_000,
        description="Of these, the most of one user, processes on a GPU not counted: the root of every container is "
        "one and the same, and all users of other user namespaces count as one.",
    )


class Http(Section):
    """Limits of the HTTP side, so that no client can hold up the agent."""

    max_connections: int = Field(
        default=64, ge=1, le=10_000, description="Connections at a time; further ones are refused."
    )
    request_timeout: Duration = Field(
        default=5.0, ge=0.1, le=300, description="Time for a client to send its whole request."
    )
    response_timeout: Duration = Field(
        default=10.0,
        ge=0.1,
        le=300,
        description="Time for a client that is slow to read to take its whole answer.",
    )
    idle_timeout: Duration = Field(
        default=75.0,
        ge=1,
        le=3600,
        description="A connection without requests is closed after this: above the usual scrape "
        "interval of 60s, so that Prometheus keeps its connection.",
    )
    max_header_size: Size = Field(default=16 * 1024, ge=1024, le=1024**2, description="Largest head of a request.")
    max_body_size: Size = Field(default=64 * 1024, ge=1024, le=16 * 1024**2, description="Largest body of a request.")
    allowed_hosts: tuple[HostPattern, ...] = Field(
        default=(),
        description="Further names under which `listen` may be asked, such as `gpu7.example.org` or `*.example.org`. "
        "localhost, IP addresses and this machine's own names need not be here.",
    )


class Log(Section):
    """The agent's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe line that is written."
    )
    format: Literal["auto", "text", "json", "journal"] = Field(
        default="auto",
        description="`text` for people, `json` for log shippers, `journal` with fields for "
        "journald; `auto` is `journal` under systemd and `text` elsewhere.",
    )


class Nvml(Section):
    """The driver's library."""

    stuck_after: Duration = Field(
        default=2.0,
        ge=0.5,
        le=600,
        description="A GPU is `blind`, and its figures absent, once a call into the driver has not come back and its "
        "last reading is older than this (at least two poll intervals); the others go on.",
    )


class Processes(Section):
    """What is shown of processes. Rules and the leak detector see every process, always."""

    top: int = Field(
        default=64,
        ge=0,
        le=10_000,
        description='Processes exported per GPU, the largest first; the rest is summed up as `process="other"`.',
    )
    command: bool = Field(default=True, description="Show command lines, without what looks like a secret.")
    redact: tuple[Pattern, ...] = Field(
        default=(),
        max_length=100,
        description="What matches one of these is blotted out of command lines too. Of a long one they are given the "
        "first 1024 characters.",
    )
    container_socket: FilePath | None = Field(
        default=None,
        description="Socket of docker or podman, such as /run/docker.sock: containers are asked for their names. "
        "Whoever may open docker's can become root, so it takes a right of its own (see remedies.md).",
    )
    container_cgroups: tuple[CgroupPath, ...] = Field(
        default=(),
        max_length=100,
        description="Further cgroups, by their path from the root, in which root's container managers make containers, "
        "such as `/ecs/*` or what `--cgroup-parent` of docker names; those of docker, containerd, CRI-O, podman, LXC, "
        "machined and the kubelet are known. Elsewhere an id counts for no budget and permits nothing. Name only those "
        "in which nobody else runs as root, not even in a sandbox: who does can take the id of any container.",
    )
    preallocates: tuple[Pattern, ...] = Field(
        default=(),
        max_length=100,
        description="Processes whose name and command line, or whose systemd unit, match one of these take the whole "
        "GPU by design (TensorFlow, JAX): where they hold it, a full GPU is no alarm. vLLM, SGLang, TensorRT-LLM, "
        "LMDeploy, TGI, TensorFlow Serving and MaxText are known, and apps with the embedded client say it themselves. "
        "A process chooses its name: on a GPU that several users or pods share, only the unit counts.",
    )

"""How the agent itself works: its addresses, its log, what it reads and whom it asks, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from gpuagent.config.values import CgroupPath, Duration, FilePath, HostPattern, Pattern, Size, Text, WebUrl
from gpuagent.core.metrics.optional import OPTIONAL_FAMILIES, left_out
from gpuagent.core.problems import Problem
from gpuagent.core.sections import Section, key


class Clients(Section):
    """Apps with the embedded client, at the socket in `client_dir`."""

    interval: Duration = key(
        default=1.0, ge=0.2, le=60, description="How often apps are asked to tell their allocator's figures."
    )
    max_connections: int = key(
        default=1024,
        ge=1,
        le=10_000,
        description="Apps at a time, as far as an eighth of the descriptors that the agent may open allows. When all "
        "places are taken, the user with the most gives one up to a user that has fewer, or to a process on a GPU; "
        "others are refused, and try again later.",
    )
    max_connections_per_user: int = key(
        default=512,
        ge=1,
        le=10_000,
        description="Of these, the most of one user, processes on a GPU not counted: the root of every container is "
        "one and the same, and all users of other user namespaces count as one.",
    )
    attach: Literal["allowed", "forbidden"] = key(
        default="allowed",
        description="`forbidden`: `gpuagent attach` brings the client into no process on this node, and says so. The "
        "agent itself never does.",
    )


class Http(Section):
    """Limits of the HTTP side, so that no client can hold up the agent."""

    max_connections: int = key(
        default=64, ge=1, le=10_000, description="Connections at a time; further ones are refused."
    )
    request_timeout: Duration = key(
        default=5.0, ge=0.1, le=300, description="Time for a client to send its whole request."
    )
    response_timeout: Duration = key(
        default=10.0,
        ge=0.1,
        le=300,
        description="Time for a client that is slow to read to take its whole answer.",
    )
    idle_timeout: Duration = key(
        default=75.0,
        ge=1,
        le=3600,
        description="A connection without requests is closed after this: above the usual scrape "
        "interval of 60s, so that Prometheus keeps its connection.",
    )
    max_header_size: Size = key(default=16 * 1024, ge=1024, le=1024**2, description="Largest head of a request.")
    max_body_size: Size = key(default=64 * 1024, ge=1024, le=16 * 1024**2, description="Largest body of a request.")
    allowed_hosts: tuple[HostPattern, ...] = key(
        default=(),
        description="Further names under which `listen` may be asked, such as `gpu7.example.org` or `*.example.org`. "
        "localhost, IP addresses and this machine's own names need not be here.",
    )


class Log(Section):
    """The agent's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = key(
        default="info", description="The least severe line that is written."
    )
    format: Literal["auto", "text", "json", "journal"] = key(
        default="auto",
        description="`text` for people, `json` for log shippers, `journal` with fields for "
        "journald; `auto` is `journal` under systemd and `text` elsewhere.",
    )


class Nvml(Section):
    """The driver's library."""

    stuck_after: Duration = key(
        default=2.0,
        ge=0.5,
        le=600,
        description="A GPU is `blind`, and its figures absent, once a call into the driver has not come back and its "
        "last reading is older than this (at least two poll intervals); the others go on.",
    )
    memory_kind: Literal["auto", "dedicated", "unified", "coherent"] = key(
        default="auto",
        description="Where the memory of the GPUs is: on their boards (`dedicated`), the machine's (`unified`: GB10, "
        "Jetson), or their own beside a CPU that reads it (`coherent`: GH200, GB200). `auto` is found out; "
        "`gpuagent doctor` says what.",
    )
    let_sleep: bool = key(
        default=True,
        description="Do not read a GPU that may power down and that nobody has used for a minute, so that it can.",
    )


class Processes(Section):
    """What is shown of processes. Rules and the leak detector see every process, always."""

    top: int = key(
        default=64,
        ge=0,
        le=10_000,
        description='Processes exported per GPU, the largest first; the rest is summed up as `process="other"`.',
    )
    command: bool = key(default=True, description="Show command lines, without what looks like a secret.")
    redact: tuple[Pattern, ...] = key(
        default=(),
        max_length=100,
        description="What matches one of these is blotted out of command lines too. Of a long one they are given the "
        "first 1024 characters.",
    )
    container_socket: FilePath | None = key(
        default=None,
        description="Socket of docker or podman, such as /run/docker.sock: containers are asked for their names. "
        "Whoever may open docker's can become root, so it takes a right of its own (see remedies.md).",
    )
    container_cgroups: tuple[CgroupPath, ...] = key(
        default=(),
        max_length=100,
        description="Further cgroups, by their path from the root, in which root's container managers make containers, "
        "such as `/ecs/*` or what `--cgroup-parent` of docker names; those of docker, containerd, CRI-O, podman, LXC, "
        "machined and the kubelet are known. Elsewhere an id counts for no budget and permits nothing. Name only those "
        "in which nobody else runs as root, not even in a sandbox: who does can take the id of any container.",
    )
    preallocates: tuple[Pattern, ...] = key(
        default=(),
        max_length=100,
        description="Processes whose name and command line, or whose systemd unit, match one of these take the whole "
        "GPU by design (TensorFlow, JAX): where they hold it, a full GPU is no alarm. vLLM, SGLang, TensorRT-LLM, "
        "LMDeploy, TGI, TensorFlow Serving and MaxText are known, and apps with the embedded client say it themselves. "
        "A process chooses its name: on a GPU that several users or pods share, only the unit counts.",
    )


class Metrics(Section):
    """Families of `/metrics` that few look at and that have many series. Rules see all of them, always."""

    nvlink_links: bool = key(
        default=False,
        description="The state of each NVLink by itself, 18 series for an H100. How many are up, their speed, and the "
        "errors of each link that had one are always there.",
    )
    mig_traffic: bool = key(
        default=False,
        description="PCI Express and NVLink traffic of each MIG instance, 4 series for each. That of GPUs is there.",
    )

    @property
    def left_out(self) -> frozenset[str]:
        """Names of the families that are not exported."""
        return left_out([name for name in OPTIONAL_FAMILIES if getattr(self, name)])


SERVER_KINDS = ("vllm", "sglang", "ollama", "triton")


class ServerSource(Section):
    """A model server on this node that is asked what its memory is for: vLLM, SGLang, Ollama or Triton."""

    key_noun: ClassVar[str] = "source"

    name: Text = key(description="The `source` label of its series.")
    vllm: WebUrl | None = key(default=None, repr=False, description="Address of a vLLM server: `/metrics`.")
    sglang: WebUrl | None = key(
        default=None, repr=False, description="Address of an SGLang server: `/server_info`, or `/get_server_info`."
    )
    ollama: WebUrl | None = key(default=None, repr=False, description="Address of an Ollama server: `/api/ps`.")
    triton: WebUrl | None = key(
        default=None, repr=False, description="Address of the metrics of a Triton server: `/metrics`."
    )
    interval: Duration = key(default=15.0, ge=1, le=3600, description="Time between two questions.")
    match: tuple[Pattern, ...] = key(
        default=(),
        max_length=100,
        description="Its processes, where their name and command line do not tell that they are such a server: as in "
        "`processes.preallocates`, for a server that takes its share of the GPU up front (vLLM, SGLang).",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, SERVER_KINDS)

    @property
    def kind(self) -> str:
        """Which server it is."""
        return next(kind for kind in SERVER_KINDS if getattr(self, kind) is not None)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return str(getattr(self, self.kind)).rstrip("/")

"""Everything that can be set: the top of the configuration file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gpuagent.config.agent import Clients, Http, Log, Metrics, Nvml, Processes, ServerSource
from gpuagent.config.alerting import MessageLinks, Receiver, Route
from gpuagent.config.checks import needs_runtime
from gpuagent.config.leaks import Leaks
from gpuagent.config.otlp import Otlp
from gpuagent.config.remedies import Budget, Remedies, budget_label
from gpuagent.config.usage import REPORT_KINDS, Report, Usage
from gpuagent.config.values import Duration, FilePath, ListenAddress, PublicUrl, Text
from gpuagent.core.problems import KeyPath, Problem, nearest, shown
from gpuagent.core.sections import Section, key
from gpuagent.core.units import parse_duration


class Config(Section):
    """The whole of it. Every key has a default: no file is needed to run."""

    poll_interval: Duration = key(
        default=1.0,
        ge=0.1,
        le=60,
        description="Time between two readings of memory, processes and utilization.",
    )
    pressure_interval: Duration = key(
        default=0.25,
        ge=0,
        le=60,
        description="Time between two readings while a machine whose GPU shares its memory (GB10, Jetson) gives memory "
        "out fast or waits for it, and for 15 s after that. At 0, or not below `poll_interval`, that stays as it is.",
    )
    slow_interval: Duration = key(
        default=15.0,
        ge=1,
        le=3600,
        description="Time between two readings of what is slow to read or rarely moves: ECC, "
        "NVLink, PCIe, clocks. Not below `poll_interval`.",
    )
    listen: ListenAddress = key(
        default="127.0.0.1:9837",
        description="Where metrics, the status and the page are served, read-only.",
    )
    web_config_file: FilePath | None = key(
        default=None,
        description="TLS and basic authentication for `listen`, in Prometheus' own format "
        "(https://prometheus.io/docs/prometheus/latest/configuration/https/).",
    )
    state_dir: FilePath = key(
        default=Path("/var/lib/gpuagent"),
        description="What must survive a restart. By default `$STATE_DIRECTORY` under systemd; as "
        "an ordinary user `$XDG_STATE_HOME/gpuagent`.",
    )
    runtime_dir: FilePath = key(
        default=Path("/run/gpuagent"),
        description="Holds `control.sock`, the door for commands. By default "
        "`$RUNTIME_DIRECTORY` under systemd; as an ordinary user `$XDG_RUNTIME_DIR/gpuagent`.",
    )
    client_dir: FilePath = key(
        default=Path("/run/gpuagent-client"),
        description="Holds `client.sock`, the door for apps with the embedded client; containers "
        "may mount it. As an ordinary user `$XDG_RUNTIME_DIR/gpuagent-client`.",
    )
    alerting: Literal["node", "prometheus"] = key(
        default="node",
        description="`node`: the agent notifies. `prometheus`: Prometheus with Alertmanager notify, and the agent "
        "sends no message; its rules are evaluated and its remedies act all the same.",
    )
    external_url: PublicUrl | None = key(
        default=None,
        description="Where people reach the page of this agent, as messages name it (behind a proxy: with its path). "
        "By default `listen` where that is not the loopback address, with this machine's name for every interface.",
    )
    links: MessageLinks = key(default=MessageLinks(), description=MessageLinks.__doc__)
    clients: Clients = key(default=Clients(), description=Clients.__doc__)
    http: Http = key(default=Http(), description=Http.__doc__)
    log: Log = key(default=Log(), description=Log.__doc__)
    nvml: Nvml = key(default=Nvml(), description=Nvml.__doc__)
    processes: Processes = key(default=Processes(), description=Processes.__doc__)
    metrics: Metrics = key(default=Metrics(), description=Metrics.__doc__)
    otlp: Otlp = key(default=Otlp(), description=Otlp.__doc__)
    leaks: Leaks = key(default=Leaks(), description=Leaks.__doc__)
    usage: Usage = key(default=Usage(), description=Usage.__doc__)
    sources: tuple[ServerSource, ...] = key(default=(), description=ServerSource.__doc__)
    rule_files: tuple[FilePath, ...] = key(
        default=(),
        description="Prometheus rule files. A rule in them replaces the shipped one of its name.",
    )
    disabled_rules: tuple[Text, ...] = key(default=(), description="Names of shipped rules to leave out.")
    receivers: tuple[Receiver, ...] = key(default=(), description=Receiver.__doc__)
    routes: tuple[Route, ...] = key(default=(), description=Route.__doc__)
    reports: tuple[Report, ...] = key(default=(), description=Report.__doc__)
    budgets: tuple[Budget, ...] = key(default=(), description=Budget.__doc__)
    remedies: Remedies = key(default=Remedies(), description=Remedies.__doc__)

    @property
    def preallocates(self) -> tuple[str, ...]:
        """Patterns of processes that take the whole GPU by design."""
        by_design = (source for source in self.sources if source.kind in {"vllm", "sglang"})
        return (*self.processes.preallocates, *(pattern for source in by_design for pattern in source.match))

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from _check_intervals(given)
        yield from _check_names(given.get("sources"), "sources", {})
        names: dict[str, int] = {}
        yield from _check_names(given.get("receivers"), "receivers", names)
        otlp = given.get("otlp")
        if "otlp" in names and isinstance(otlp, Mapping) and otlp.get("endpoint") is not None:
            yield Problem(("receivers", names["otlp"], "name"), "the push by OTLP has this name", "another name")
        yield from _check_routes(given.get("routes"), names)
        yield from _check_reports(given.get("reports"), given.get("receivers"))
        yield from _check_budgets(given.get("budgets"))
        yield from _check_containers(given)
        yield from _check_memory_kind(given)


def _check_memory_kind(given: Mapping[str, object]) -> Iterator[Problem]:
    """Find steps that drop page cache on GPUs of which the configuration says that it is no memory of theirs."""
    nvml, remedies = given.get("nvml"), given.get("remedies")
    kind = nvml.get("memory_kind", "auto") if isinstance(nvml, Mapping) else "auto"
    if kind not in {"dedicated", "coherent"} or not isinstance(remedies, Mapping):
        return
    for index, ladder in enumerate(_mappings(remedies.get("ladders"))):
        for number, step in enumerate(_mappings(ladder.get("steps"))):
            if "drop_caches" in step:
                path = ("remedies", "ladders", index, "steps", number, "drop_caches")
                yield Problem(path, f"page cache is no memory of the GPU by nvml.memory_kind: {kind}")


def _check_intervals(given: Mapping[str, object]) -> Iterator[Problem]:
    defaults = Config.keys
    with suppress(ValueError):  # told by the value itself
        poll, slow = (
            parse_duration(given.get(name, defaults[name].default))  # type: ignore[arg-type]
            for name in ("poll_interval", "slow_interval")
        )
        if poll > slow:
            which = "slow_interval" if "slow_interval" in given else "poll_interval"
            yield Problem((which,), "poll_interval is longer than slow_interval")


def _check_names(items: object, key: str, names: dict[str, int]) -> Iterator[Problem]:
    """Find names that are given twice, and note all of them."""
    for index, item in enumerate(_mappings(items)):
        name = item.get("name")
        if not isinstance(name, str):
            continue
        first = names.setdefault(name, index)
        if first != index:
            yield Problem((key, index, "name"), f"{shown(name)} is already the name of {key}[{first}]")


def _check_budgets(items: object) -> Iterator[Problem]:
    """Find labels that two budgets would share: an alert about one must never reach the processes of the other."""
    labels: dict[str, int] = {}
    for index, item in enumerate(_mappings(items)):
        label = budget_label(item.get("name"), item.get("match"))
        first = labels.setdefault(label, index) if label else index
        if first != index:
            where = "name" if item.get("name") is not None else "match"
            problem = f"{shown(label)} is already the label of budgets[{first}]"
            yield Problem(("budgets", index, where), problem, "a name of its own for each of the two")


def _check_routes(routes: object, names: Collection[str]) -> Iterator[Problem]:
    allowed = ", ".join(names) or "nothing: there are no receivers"
    for index, route in enumerate(_mappings(routes)):
        receivers = route.get("receivers")
        for place, name in enumerate(receivers if isinstance(receivers, tuple) else ()):
            if isinstance(name, str) and name not in names:
                path = ("routes", index, "receivers", place)
                problem = f"there is no receiver {shown(name)}"
                yield Problem(path, problem, allowed, nearest(name, names))


def _check_reports(reports: object, receivers: object) -> Iterator[Problem]:
    """Find receivers of reports that are not there, or that would take a report for an alert."""
    kinds = {
        item.get("name"): next((kind for kind in REPORT_KINDS if kind in item), "") for item in _mappings(receivers)
    }
    fit = [name for name, kind in kinds.items() if isinstance(name, str) and kind]
    allowed = ", ".join(fit) or f"nothing: there is no receiver of these kinds: {', '.join(REPORT_KINDS)}"
    for index, report in enumerate(_mappings(reports)):
        named = report.get("receivers")
        for place, name in enumerate(named if isinstance(named, tuple) else ()):
            if not isinstance(name, str) or name in fit:
                continue
            problem = f"{shown(name)} takes alerts only" if name in kinds else f"there is no receiver {shown(name)}"
            yield Problem(("reports", index, "receivers", place), problem, allowed, nearest(name, fit))


def _check_containers(given: Mapping[str, object]) -> Iterator[Problem]:
    """Find names of containers, and pieces of ids, that no process can have as long as no runtime tells names."""
    processes, remedies = given.get("processes"), given.get("remedies")
    if isinstance(processes, Mapping) and processes.get("container_socket"):
        return
    allow = remedies.get("allow") if isinstance(remedies, Mapping) else None
    allowed = allow.get("containers") if isinstance(allow, Mapping) else None
    places: list[tuple[KeyPath, object]] = [
        (("remedies", "allow", "containers", index), name)
        for index, name in enumerate(allowed if isinstance(allowed, tuple) else ())
    ]
    leaks = given.get("leaks")
    overrides = leaks.get("overrides") if isinstance(leaks, Mapping) else None
    for name, items in ((("budgets",), given.get("budgets")), (("leaks", "overrides"), overrides)):
        for index, item in enumerate(_mappings(items)):
            match = item.get("match")
            if isinstance(match, Mapping):
                places.append(((*name, index, "match", "container"), match.get("container")))
    for path, container in places:
        if isinstance(container, str) and container and needs_runtime(container):
            yield Problem(
                path,
                f"{shown(container)} is no id of 12 digits or more, and no runtime is asked for the names of "
                "containers",
                "an id, at least its first 12 digits; with processes.container_socket also a name",
            )


def _mappings(value: object) -> list[Mapping[str, object]]:
    """Return the items of a list; what is no mapping (told elsewhere) is taken for an empty one."""
    items = value if isinstance(value, tuple) else ()
    return [item if isinstance(item, Mapping) else {} for item in items]

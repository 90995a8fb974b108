"""The board *GPU agent*: whether the agents themselves work, and what they cost."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import health
from grafana_foundation_sdk.builders import prometheus, table
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    BAD_FROM_ONE,
    GPU,
    GREEN,
    LEGEND,
    NODE,
    RED,
    Panel,
    counts,
    latest,
    lines,
    number,
    query,
    settings,
    states,
    words,
)
from tables import MISSING, listing, widths

NO_ALERTING = "No alerting, or no data: is the agent scraped?"
NO_RECEIVER = "No receiver is configured, or no data"
GAUGES = ("pci_gpus", "rules", "remedy_ladders")
COUNTERS = ("ticks_total", "ticks_late_total", "nvml_initializations_total", "processes_seen_total")
FEW = ((0, GREEN), (1, AMBER))


def per_interval(metric: str, by: str) -> str:
    """Return the query of how much a counter grew per interval."""
    return f"sum by ({by}) (increase(gpuagent_{metric}{{{NODE}}}[$__rate_interval]))"


def now() -> Iterator[Panel]:
    """Yield what keeps an agent from doing its work."""
    yield number(
        "Agents up",
        "Agents that Prometheus could scrape, of those it knows.",
        f"sum(up{{{NODE}}}) / count(up{{{NODE}}})",
        "percentunit",
        ((0, RED), (1, GREEN)),
        empty="No agent is known",
    )
    yield number(
        "Age of data",
        "Time since a GPU was last read, on the node where that is longest ago.",
        f"max(gpuagent_snapshot_age_seconds{{{NODE}}})",
        "s",
        ((0, GREEN), (10, AMBER), (60, RED)),
        empty="Unknown: no GPU was ever read, or no data",
        decimals=0,
    )
    for title, text, expr, limits, empty in (
        (
            "Paused",
            "Agents that somebody has told to measure nothing for a while (`gpuagent pause`).",
            f"count(gpuagent_pause_remaining_seconds{{{NODE}}}) or 0 * count(gpuagent_build_info{{{NODE}}})",
            FEW,
            "Unknown: no data",
        ),
        (
            "Remedies stopped",
            "Agents that leave all processes alone, or some owners', until a person looks (`gpuagent remedies reset`).",
            (
                f"count(gpuagent_remedies_stopped{{{NODE}}} + gpuagent_remedy_owners_left_alone{{{NODE}}} > 0)"
                f" or 0 * count(gpuagent_remedies_stopped{{{NODE}}})"
            ),
            BAD_FROM_ONE,
            "Unknown: no data",
        ),
        (
            "Parts failing",
            "Parts of the readings that failed at their last run, on all nodes.",
            f"sum(gpuagent_collector_success{{{NODE}}} == bool 0)",
            FEW,
            "Unknown: no data",
        ),
        (
            "State not kept",
            "Agents that cannot keep the state of their alerts on disk.",
            f"sum(1 - gpuagent_store_healthy{{{NODE}}})",
            BAD_FROM_ONE,
            NO_ALERTING,
        ),
        (
            "Undelivered",
            "Receivers of messages that are not told what they should be.",
            f"count(gpuagent_receiver_undelivered{{{NODE}}}) or 0 * count(gpuagent_rules{{{NODE}}})",
            BAD_FROM_ONE,
            NO_ALERTING,
        ),
        (
            "Cannot tell pids",
            "Agents in a pid namespace of their own: they cannot tell whose a process is, and act on none.",
            f"sum(1 - gpuagent_host_pid_namespace{{{NODE}}})",
            FEW,
            "Unknown: no data",
        ),
        (
            "Socket closed",
            "Agents whose socket for apps with the embedded client is not open.",
            f"sum(1 - gpuagent_client_socket_up{{{NODE}}})",
            FEW,
            "Unknown: no data",
        ),
    ):
        yield number(title, text, expr, "none", limits, empty=empty)


def agents() -> table.Panel:
    """One line for each agent."""
    unknown = f"-1 * max by (instance) (up{{{NODE}}} < bool 2)"

    def by_node(expr: str) -> prometheus.Dataquery:
        return latest(f"{expr} or {unknown}")

    made = listing(
        "Agents",
        "Each agent that Prometheus knows. On the bus: by PCI, whatever the driver says. Ticks, starts of NVML and new "
        "processes on GPUs are of the time range. n/a: it does not tell.",
        {
            "instance": "Node",
            "version": "Version",
            "Value #B": "Last tick",
            "Value #C": "GPUs on the bus",
            "Value #D": "Rules",
            "Value #E": "Ladders",
            "Value #F": "Ticks",
            "Value #G": "Late ticks",
            "Value #H": "Starts of NVML",
            "Value #I": "New processes",
        },
        "Node",
        latest(f"max by (instance, version) (gpuagent_build_info{{{NODE}}})"),
        by_node(f"1000 * max by (instance) (gpuagent_snapshot_timestamp_seconds{{{NODE}}})"),
        *(by_node(f"max by (instance) (gpuagent_{metric}{{{NODE}}})") for metric in GAUGES),
        *(
            by_node(f"round(max by (instance) (increase(gpuagent_{metric}{{{NODE}}}[$__range])))")
            for metric in COUNTERS
        ),
        empty="No agent is known",
        descending=False,
    )
    made.override_by_name("Last tick", settings(unit="dateTimeAsIso", custom__width=180, mappings=MISSING))
    made.override_by_regexp("GPUs.*|Rules|Ladders|Ticks|Late.*|Starts.*|New.*", settings(mappings=MISSING))
    return widths(made, Version=150)


def reading() -> Iterator[Panel]:
    """Yield whether measuring keeps its time."""
    yield from health.reading()
    yield counts(
        lines(
            "Ticks that came late",
            "Per interval. Late ticks: the machine is too busy, or a driver call takes long.",
            "none",
            query(per_interval("ticks_late_total", "instance"), "{{instance}}"),
        )
    )


def rules() -> Iterator[Panel]:
    """Yield whether rules are evaluated."""
    yield lines(
        "Time to evaluate the rules",
        "Duration of the last evaluation of all rules.",
        "s",
        query(f"gpuagent_rule_evaluation_duration_seconds{{{NODE}}}", "{{instance}}"),
        empty=NO_ALERTING,
    )
    yield counts(
        lines(
            "Rules that fail",
            "Evaluations per interval that failed, of the rules that did. The agent's log says why.",
            "none",
            query(
                per_interval("rule_evaluation_failures_total", "instance, rule_group, rule") + " > 0",
                "{{instance}} {{rule_group}} {{rule}}",
            ),
            empty="No rule fails, or no data",
        )
    )
    yield counts(
        lines(
            "Rows set aside",
            "Rows of the state on disk that could not be read, per interval, by table.",
            "none",
            query(per_interval("store_rows_set_aside_total", "instance, table"), "{{instance}} {{table}}"),
            empty="No row was set aside, or no data",
        )
    )


def messages() -> Iterator[Panel]:
    """Yield what becomes of messages."""
    yield from health.waiting()
    yield lines(
        "Oldest message that waits",
        "Age of the oldest message that no receiver has taken yet.",
        "s",
        query(f"gpuagent_notification_oldest_undelivered_seconds{{{NODE}}}", "{{instance}} {{receiver}}"),
        empty="No message waits, or no data",
    )
    yield counts(
        lines(
            "Messages",
            "Per interval: messages that a receiver took, attempts that failed, messages held back because the "
            "receiver had had enough for an hour, and messages dropped because too many waited.",
            "none",
            *(
                query(per_interval(metric, "instance, receiver"), f"{{{{instance}}}} {{{{receiver}}}} {word}")
                for metric, word in (
                    ("notifications_sent_total", "taken"),
                    ("notification_failures_total", "failed"),
                    ("notifications_held_back_total", "held back"),
                    ("notifications_dropped_total", "dropped"),
                )
            ),
            empty=NO_RECEIVER,
        )
    )
    yield states(
        "Receivers that are not told",
        "Why a receiver is not told what it should be: failing, waiting, switched off, or messages were given up.",
        words(("not told", RED), start=1),
        query(
            f"max by (instance, receiver, why) (gpuagent_receiver_undelivered{{{NODE}}})",
            "{{instance}} {{receiver}}: {{why}}",
        ),
        empty="Every receiver is told, or none is configured, or no data",
    )


def remedies() -> Iterator[Panel]:
    """Yield what remedies have done, and what is left open."""
    yield counts(
        lines(
            "Remedies ended",
            "Per interval, by result. With dry run, nothing was done.",
            "none",
            query(
                per_interval("remedies_total", "instance, result, dry_run") + " > 0",
                "{{instance}} {{result}} (dry run: {{dry_run}})",
            ),
            query(f"gpuagent_remedies_running{{{NODE}}} > 0", "{{instance}} running"),
            empty="No remedy has ended, or no data",
        )
    )
    yield lines(
        "Memory that came back",
        "Memory that came back after remedies, per interval.",
        "bytes",
        query(per_interval("remedy_released_bytes_total", "instance"), "{{instance}}"),
        empty="No remedies, or no data",
    )
    yield lines(
        "Processes that have not ended",
        "Time since a step was taken that may end a process, while the process has not ended and no remedy for it is "
        "under way.",
        "s",
        query(
            f"time() - gpuagent_remedy_outstanding_timestamp_seconds{{{GPU}}}",
            f"{LEGEND} {{{{process}}}} ({{{{pid}}}}) {{{{step}}}}",
        ),
        empty="No process is waited for, or no data",
    )


def detector() -> Iterator[Panel]:
    """Yield the leak detector's load."""
    yield counts(
        lines(
            "Histories of the leak detector",
            "Processes and GPUs whose memory it remembers, and processes that it had no room for, per interval.",
            "none",
            query(f"gpuagent_leak_histories{{{NODE}}}", "{{instance}} remembered"),
            query(per_interval("leak_histories_refused_total", "instance"), "{{instance}} refused"),
        )
    )
    yield states(
        "Growth that is expected",
        "GPUs that fill up within minutes, by servers that take most of the GPU by design and have just started.",
        words(("unexpected", RED), ("expected", GREEN)),
        query(f"max by (instance, gpu) (gpuagent_gpu_memory_fast_growth_expected{{{GPU}}})", LEGEND),
        empty="No GPU fills up within minutes, or no data",
    )
    yield lines(
        "GPUs leak for",
        "Time since a leak began, on GPUs on which memory is taken to leak.",
        "s",
        query(f"clamp_min(time() - gpuagent_gpu_memory_leak_since_seconds{{{GPU}}}, 0)", LEGEND),
        empty="No leak, or no data",
    )


def clients() -> Iterator[Panel]:
    """Yield what apps with the embedded client do."""
    yield counts(
        lines(
            "Apps with the embedded client",
            "Apps that are connected.",
            "none",
            query(f"gpuagent_clients{{{NODE}}}", "{{instance}}"),
        )
    )
    yield lines(
        "Lines and events of clients",
        "Per second: lines that clients sent, events in them, and how often one sent more than its share and had to "
        "wait.",
        "ops",
        *(
            query(
                f"sum by (instance) (rate(gpuagent_client_{metric}_total{{{NODE}}}[$__rate_interval]))",
                f"{{{{instance}}}} {metric}",
            )
            for metric in ("lines", "events", "throttlings")
        ),
    )
    yield counts(
        lines(
            "Connections of clients",
            "Per interval: new ones, those that were refused, and those that the agent ended, with the reason.",
            "none",
            query(per_interval("client_connections_total", "instance"), "{{instance}} new"),
            query(
                per_interval("client_connections_refused_total", "instance, reason"), "{{instance}} refused: {{reason}}"
            ),
            query(
                per_interval("client_connections_dropped_total", "instance, reason"), "{{instance}} ended: {{reason}}"
            ),
        )
    )
    yield counts(
        lines(
            "Commands to apps",
            "Per interval, by what became of them.",
            "none",
            query(
                per_interval("client_commands_total", "instance, command, outcome"),
                "{{instance}} {{command}}: {{outcome}}",
            ),
            empty="No command was sent, or no data",
        )
    )


def agent() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("Now", list(now()), 4, 3),
        Row("", [agents()], 24, 7),
        Row("Measuring", list(reading()), 12, 9),
        Row("Rules and state", list(rules()), 8, 8),
        Row("Messages", list(messages()), 12, 8),
        Row("Remedies", list(remedies()), 8, 8),
        Row("Leak detector", list(detector()), 8, 8),
        Row("Apps with the embedded client", list(clients()), 12, 8),
    )
    return board(
        "gpuagent-agent",
        "GPU agent",
        "Whether the agents measure in time, evaluate their rules and deliver their messages; what remedies have done.",
        rows,
        common_choices(),
        notes(),
    )

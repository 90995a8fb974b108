"""What fires and what was done: the same on every board, whoever evaluates the rules."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from grafana_foundation_sdk.builders import statetimeline, table
from panels import AMBER, BLUE, GPU, GREY, NODE, RED, latest, query, settings, states, words
from tables import listing, widths


def firing(severity: str = ".+", selector: str = NODE) -> str:
    """How many alerts fire; 0 only where an agent answers and rules are looked at, by it or Prometheus (Watchdog)."""
    chosen = f'{selector}, alertstate="firing", alertname!="Watchdog", severity=~"{severity}"'
    return (
        "max("
        f"sum(gpuagent_alerts{{{chosen}}})"
        f' or label_replace(count(ALERTS{{{chosen}}}), "by", "prometheus", "", "")'
        f' or label_replace(0 * max(gpuagent_rules{{{NODE}}} > 0), "by", "agent without alerts", "", "")'
        f" or label_replace(0 * count(up{{{NODE}}} == 1) and on () count(ALERTS{{alertname="
        '"Watchdog"}), "by", "prometheus without alerts", "", "")'
        ")"
    )


def severity(metric: str, selector: str, by: str) -> str:
    """Alerts as numbers from 1 (pending) to 4 (critical), the worst of each name."""
    levels = (
        (4, 'alertstate="firing", severity="critical"'),
        (3, 'alertstate="firing", severity="warning"'),
        (2, 'alertstate="firing", severity!~"critical|warning"'),
        (1, 'alertstate="pending"'),
    )
    arms = " or ".join(
        f'{level} * ({metric}{{{selector}, alertname!="Watchdog", {states_}}} > bool 0)' for level, states_ in levels
    )
    return f"max by ({by}) ({arms})"


def timeline(selector: str = GPU) -> statetimeline.Panel:
    """Alerts over time. `selector` chooses those that Prometheus evaluates; an agent's are counted per node."""
    # An alert that both evaluate is shown once, as Prometheus has it: with GPU and pid. Prometheus looks later and less
    # often, so an agent's line goes for the whole time range, not only for the moments in which both fire.
    in_prometheus = f"on (instance, alertname) last_over_time(ALERTS{{{selector}}}[$__range] @ end())"
    return states(
        "Alerts",
        "What fires or is pending, each alert once. Where Prometheus evaluates the rules, with GPU and pid; where the "
        "agents do, one line for each node and rule. Pending: true, and not yet for long enough. "
        "`gpuagent alerts` on the node says what each means and what to do.",
        words(("pending", GREY), ("info", BLUE), ("warning", AMBER), ("critical", RED), start=1),
        query(
            f"{severity('gpuagent_alerts', NODE, 'instance, alertname')} unless {in_prometheus}",
            "{{instance}} {{alertname}}",
        ),
        query(
            severity("ALERTS", selector, "instance, gpu, pid, alertname"),
            "{{instance}} GPU {{gpu}} {{pid}} {{alertname}}",
        ),
        empty="No alert, or no data: see how many agents are up",
    )


def remedies(selector: str = GPU) -> table.Panel:
    """Show what was done to processes in the time range."""
    by = "instance, gpu, pid, process, user, unit, run, step, result, dry_run"
    made = listing(
        "Remedies",
        "What was done to give memory back, in the time range. With dry run, nothing was done. `gpuagent remedies` "
        "on the node shows each step, and why one was refused.",
        {
            "Value": "Ended",
            "instance": "Node",
            "gpu": "GPU",
            "pid": "PID",
            "process": "Process",
            "user": "User",
            "unit": "Unit",
            "step": "Step",
            "result": "Result",
            "dry_run": "Dry run",
        },
        "Ended",
        latest(f"1000 * max by ({by}) (last_over_time(gpuagent_remedy_end_timestamp_seconds{{{selector}}}[$__range]))"),
        empty="No remedy in this time, or no data: see how many agents are up",
    )
    made.override_by_name("Ended", settings(unit="dateTimeAsIso"))
    return widths(made, Ended=180, GPU=50, User=110, Step=130, Dry_run=80)

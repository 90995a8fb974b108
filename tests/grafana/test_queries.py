"""Every query of every board against a real Prometheus that scrapes real agents: well, sick, and not there."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.grafana.boards import NAMES, board, filled_in, legend, panels, queries
from tests.grafana.stage import SILENT, fleet
from tests.integration.prometheus import Prometheus
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.needs("prometheus"), pytest.mark.timeout(300)]

JOBS = ("healthy", "leak", "lost-gpu", "mig", "dead-process", "app", "no-driver", SILENT)
RANGE_SECONDS = 60.0
GIB = 1024**3

# What has no data on a node that is well and has no client, no MIG, no receiver; and what a job has of it, or lacks.
USUALLY_EMPTY = {
    "gpu-fleet": {"Alerts"},
    "gpu-efficiency": {
        "Cost of idle time", "Held idle now", "Limit for idle GPUs", "Free GPUs by model",
    },
    "gpu-node": {
        "What grows: memory, floor and forecast", "Links to the CPU (C2C)", "What holds the clocks down",
        "Alerts", "MIG instances, share in use", "Growth", "Time until a GPU is full", "Leaks", "First GPU full in",
        "Driver, reserved, allocated", "Cached, by app", "Allocations in trouble", "Remedies", "Messages that wait",
        "Memory of processes that have ended", "Budgets", "Model servers", "Key-value cache in use",
        "Requests of model servers", "Memory of model servers", "Memory of the machine", "Waiting for memory",
        "Time until the machine's memory is gone",
    },
    "gpu-process": {
        "Growth an hour", "GPU full in", "Leaking since", "Cached", "What the memory is for", "Slope", "Evidence",
        "Allocations in trouble", "Alerts", "Remedies", "Busy", "Peaks", "Fragmentation", "Segments",
        "Limit of the process", "Takes the GPU by design", "Allocator and versions",
    },
    "gpu-details": {
        "What the GPUs need", "Links to the CPU (C2C)", "Fans", "What holds the clocks down", "MIG devices",
        "Free memory of MIG instances", "MIG: multiprocessors and tensor cores", "MIG: engines and memory bandwidth",
        "MIG: arithmetic outside the tensor cores", "Verdict on MIG instances", "Growth of MIG instances",
        "Time until a MIG instance is full", "MIG instances leak for",
    },
    "gpu-agent": {
        "Rules that fail", "Rows set aside", "Messages that wait", "Oldest message that waits", "Messages",
        "Receivers that are not told", "Remedies ended", "Memory that came back", "Processes that have not ended",
        "Growth that is expected", "GPUs leak for", "Commands to apps",
    },
}  # fmt: skip


class Fleet(NamedTuple):
    """The server, and the end of the minute that is looked at: all tests see the same."""

    server: Prometheus
    end: float

    def answer(self, expr: str, *, instant: bool) -> list[dict[str, Any]]:
        """The series of an answer, each with `values`."""
        if instant:
            answer = self.server.at(expr, self.end)
        else:
            answer = self.server.over_time(expr, self.end - RANGE_SECONDS, self.end)
        assert answer["status"] == "success", f"{answer['error']}: {expr}"
        assert not answer.get("warnings"), expr
        found: list[dict[str, Any]] = answer["data"]["result"]
        return [{"values": [series["value"]]} | series if "value" in series else series for series in found]

    def pid(self, job: str) -> str:
        """The first process that the board *GPU process* offers; "none" where it offers none."""
        (choice,) = (each for each in board("gpu-process")["templating"]["list"] if each["name"] == "pid")
        inner = re.fullmatch(r"query_result\((.*)\)", choice["definition"])
        assert inner
        offered = [
            re.search(r'pid="(?P<value>[0-9]+)".*text="(?P<text>[^"]*)"', as_query_result(series["metric"]))
            for series in self.answer(filled_in(inner[1], variables(job)), instant=True)
        ]
        assert all(offered)
        texts = sorted((each["text"], each["value"]) for each in offered if each)
        assert all(text.endswith(f" {value}") for text, value in texts)
        return texts[0][1] if texts else "none"


def as_query_result(labels: dict[str, str]) -> str:
    """A series as Grafana's query_result() writes it, for the variable's pattern to be applied to."""
    return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "} 1 1700000000000"


def variables(job: str, pid: str = "none") -> dict[str, str]:
    """One job, and everything in it."""
    return {"job": job, "instance": ".+", "gpu": ".+", "pid": pid}


@pytest.fixture(scope="module")
def seen() -> Iterator[Fleet]:
    """After everything has happened that the scenarios are for."""
    with fleet() as (_, server):
        for expr in (
            'gpuagent_process_memory_leak_evidence{job="leak"}',
            'gpuagent_remedy_end_timestamp_seconds{job="leak"}',
            'ALERTS{job="leak", alertname="GpuProcessMemoryLeak", alertstate="firing"}',
            'gpuagent_gpu_memory_dead_processes_bytes{job="dead-process"} > 0',
            'increase(gpuagent_torch_alloc_retries_total{job="app"}[1m]) > 0',
            "count(count by (job) (instance:gpuagent_memory_wasted_bytes:sum)) >= 6",
            'instance_gpu:gpuagent_problem:max{job="leak", problem="memory leaks"}',
            'instance_gpu:gpuagent_problem:max{job="dead-process"}',
            "count(count by (job) (instance_user_workload:gpuagent_usage_held_seconds:rate5m)) >= 6",
            'instance_user_workload:gpuagent_usage_energy_joules:rate5m{job="healthy", holder="processes"}',
            f'up{{job="{SILENT}"}} == bool 0',
        ):  # fmt: skip
            until(lambda expr=expr: [each for each in server.query(expr) if each.value], expr, 150)  # type: ignore[misc]
        yield Fleet(server, time.time())


def shown(seen: Fleet, name: str, job: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """(legend, series) of all queries of each panel."""
    chosen = variables(job, seen.pid(job))
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {panel["title"]: [] for panel in panels(name)}
    for query in queries(name):
        for series in seen.answer(filled_in(query.expr, chosen), instant=query.instant):
            found[query.panel].append((legend(query.legend, series["metric"]), series))
    return found


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", NAMES)
def test_no_query_fails_and_series_have_names_of_their_own(seen: Fleet, name: str, job: str) -> None:
    """EXP-09: no error, nothing that is no number alone, and no two lines of one name, whatever the node's state."""
    for title, found in shown(seen, name, job).items():
        for _, series in found:
            assert any(not math.isnan(float(value)) for _, value in series["values"]), (title, series["metric"])
        names = Counter(text for text, _ in found if text != "__auto")
        assert [text for text, number in names.items() if number > 1] == [], title
        assert all(text.strip() == text and "  (" not in text for text in names), title


def empty(seen: Fleet, name: str, job: str) -> set[str]:
    """Titles of the panels without data."""
    return {title for title, found in shown(seen, name, job).items() if not found}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_is_well_fills_its_boards(seen: Fleet, name: str) -> None:
    """All panels draw something, but those about what this node does not have."""
    assert empty(seen, name, "healthy") <= USUALLY_EMPTY[name]


@pytest.mark.parametrize(
    ("job", "name", "titles"),
    [
        ("leak", "gpu-fleet", {"Alerts"}),
        ("leak", "gpu-node", {
            "Alerts", "Growth", "Time until a GPU is full", "Leaks", "First GPU full in",
            "What grows: memory, floor and forecast",
        }),
        ("leak", "gpu-node", {"Remedies"}),
        ("leak", "gpu-process", {"Growth an hour", "GPU full in", "Leaking since", "Slope", "Evidence"}),
        ("leak", "gpu-process", {"Alerts", "Remedies", "Busy"}),
        ("app", "gpu-node", {"Driver, reserved, allocated", "Cached, by app", "Allocations in trouble"}),
        ("app", "gpu-process", {"Cached", "What the memory is for", "Allocations in trouble"}),
        ("mig", "gpu-node", {"MIG instances, share in use"}),
        ("mig", "gpu-details", {
            "MIG devices", "Free memory of MIG instances", "MIG: multiprocessors and tensor cores",
            "MIG: engines and memory bandwidth", "MIG: arithmetic outside the tensor cores", "Verdict on MIG instances",
        }),
        ("lost-gpu", "gpu-details", {"What the GPUs need"}),
        ("dead-process", "gpu-node", {"Memory of processes that have ended"}),
        ("app", "gpu-process", {"Allocator and versions"}),
        ("leak", "gpu-agent", {"GPUs leak for"}),
    ],
)  # fmt: skip
def test_a_sick_node_fills_the_panels_about_its_sickness(seen: Fleet, job: str, name: str, titles: set[str]) -> None:
    """What is empty on a node that is well is not empty where it matters."""
    assert titles <= USUALLY_EMPTY[name]
    assert empty(seen, name, job) & titles == set()


def values(seen: Fleet, name: str, job: str, title: str) -> dict[str, float]:
    """Legend and newest value of each series of a panel."""
    return {text: float(series["values"][-1][1]) for text, series in shown(seen, name, job)[title]}


def test_the_stack_adds_up(seen: Fleet) -> None:
    """Live, dead, unattributed, free and reserved are all there is, with 38 GiB of a dead process and 5 of a zombie."""
    parts = values(seen, "gpu-node", "dead-process", "Where the memory is")
    total = sum(values(seen, "gpu-node", "dead-process", "Memory used").values())
    used = values(seen, "gpu-node", "dead-process", "Memory used")

    assert parts.keys() == {"live processes", "dead processes", "unattributed", "free", "reserved"}
    assert parts["dead processes"] == 43 * GIB
    assert sum(parts.values()) == total - sum(size for text, size in used.items() if text.endswith("used"))


def test_three_views_of_the_same_memory(seen: Fleet) -> None:
    """Driver, reserved and allocated, in this order, and the parts add up to what the driver counts."""
    three = values(seen, "gpu-process", "app", "Driver, reserved, allocated")
    parts = values(seen, "gpu-process", "app", "What the memory is for")

    by_name = {text.rsplit(" ", 1)[-1]: size for text, size in three.items()}
    assert by_name["driver"] > by_name["reserved"] > by_name["allocated"] == 4 * GIB
    assert by_name["typical"] == 7 * GIB
    assert parts.keys() == {"allocated", "cached", "outside"}
    assert sum(parts.values()) == by_name["driver"]


@pytest.mark.parametrize("job", ["healthy", "leak", "mig", "dead-process", "app"])
def test_rows_of_the_process_table_merge(seen: Fleet, job: str) -> None:
    """Each process is one row: all queries have the same rows by the labels that they share."""
    targets = [query for query in queries("gpu-node") if query.panel == "Processes"]
    frames = [
        [series["metric"] for series in seen.answer(filled_in(query.expr, variables(job)), instant=True)]
        for query in targets
    ]
    shared = set.intersection(*({key for row in frame for key in row} for frame in frames))
    rows = [sorted(tuple(row.get(key, "") for key in sorted(shared)) for row in frame) for frame in frames]

    assert {"instance", "gpu", "pid", "process"} <= shared
    assert rows[0]
    assert len(set(rows[0])) == len(rows[0])
    assert all(each == rows[0] for each in rows)


@pytest.mark.parametrize("name", ["gpu-fleet", "gpu-node"])
def test_an_alert_is_shown_once(seen: Fleet, name: str) -> None:
    """Where the agent and Prometheus evaluate the same rule, its line is that of Prometheus, with the GPU."""
    of_agents, of_prometheus = (
        {(series["metric"]["instance"], series["metric"]["alertname"]) for series in seen.answer(expr, instant=False)}
        for expr in (filled_in(query.expr, variables(".+")) for query in queries(name) if query.panel == "Alerts")
    )
    assert "GpuProcessMemoryLeak" in {alertname for _, alertname in of_prometheus}
    assert not of_agents & of_prometheus


def test_the_nodes_table_has_one_row_for_each_agent(seen: Fleet) -> None:
    """Also for the one that does not answer, whose figures are n/a and not 0."""
    chosen = variables(".+")
    columns = [
        {
            series["metric"]["job"]: float(series["value"][1])
            for series in seen.answer(filled_in(query.expr, chosen), instant=True)
        }
        for query in queries("gpu-fleet")
        if query.panel == "Nodes"
    ]  # fmt: skip

    assert all(column.keys() == set(JOBS) for column in columns)
    assert [column[SILENT] for column in columns] == [4] + [-1] * (len(columns) - 1)
    gravest = {"no-driver": 3, "lost-gpu": 3, "dead-process": 2, "healthy": 0}
    assert {job: columns[0][job] for job in gravest} == gravest
    assert columns[2]["lost-gpu"] == 1


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("leak", "memory leaks"),
        ("lost-gpu", "GPU lost"),
        ("dead-process", "dead processes hold memory"),
        ("no-driver", "the agent cannot read any GPU"),
        (SILENT, "the agent cannot be scraped"),
        ("no such job", "Prometheus knows no agent"),
    ],
)
def test_what_is_wrong_is_on_the_fleets_list(seen: Fleet, job: str, problem: str) -> None:
    """Problems first: each sick node is named, and an empty list cannot come from a fleet that nobody scrapes."""
    (query,) = (each for each in queries("gpu-fleet") if each.panel == "What is wrong")
    rows = seen.answer(filled_in(query.expr, variables(job)), instant=True)

    assert problem in {row["metric"]["problem"] for row in rows}


def test_a_node_that_is_well_is_not_on_it(seen: Fleet) -> None:
    """Only that it is simulated."""
    (query,) = (each for each in queries("gpu-fleet") if each.panel == "What is wrong")
    rows = seen.answer(filled_in(query.expr, variables("healthy")), instant=True)

    assert {row["metric"]["problem"] for row in rows} == {"simulated: no figure of it is real"}


def color(panel: Any, value: float) -> str:
    """What Grafana paints a number's background with: of its meaning, else of the highest limit below it."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", []):
        options = mapping["options"]
        if mapping["type"] == "value" and f"{value:g}" in options:
            return str(options[f"{value:g}"]["color"])
        if mapping["type"] == "range":
            low, high = options.get("from"), options.get("to")
            if (low is None or value >= low) and (high is None or value <= high):
                return str(options["result"]["color"])
    reached = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
    return str(reached[-1]["color"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("job", "calm"), [
    (SILENT, set()),
    # The agent answers, and says that it knows nothing: so much is well.
    ("no-driver", {
        "Agents up", "Agents silent", "Critical alerts", "Warnings", "Alerts firing", "Remedies stopped", "Paused",
        "State not kept", "Undelivered", "Cannot tell pids", "Socket closed",
    }),
])  # fmt: skip
def test_nothing_looks_calm_when_nothing_is_collected(seen: Fleet, name: str, job: str, calm: set[str]) -> None:
    """EXP-05: no number about GPUs is green while no GPU can be read, and none at all while the agent is silent."""
    found = shown(seen, name, job)
    green = {
        panel["title"]
        for panel in panels(name)
        if panel["type"] == "stat"
        and any(color(panel, float(series["values"][-1][1])) == "green" for _, series in found[panel["title"]])
    }

    assert green <= calm
    lines = {panel["title"] for panel in panels(name) if panel["type"] == "timeseries"}
    about_gpus = {title for title in lines if found[title] and "GPU" in title} - {"GPUs that can be read"}
    assert about_gpus == set()


@pytest.mark.parametrize("name", NAMES)
def test_annotations_are_times_of_remedies(seen: Fleet, name: str) -> None:
    """What was refused in a dry run is marked as such, on every board."""
    note = board(name)["annotations"]["list"][1]
    marks = seen.answer(filled_in(note["expr"], variables("leak", seen.pid("leak"))), instant=True)

    assert marks
    for mark in marks:
        assert legend(note["titleFormat"], mark["metric"]).startswith("Dry run, nothing was done: ")
        assert "embed-server" in legend(note["textFormat"], mark["metric"])
        assert 1e12 < float(mark["value"][1]) < 1e13


def test_memory_by_workload_is_what_processes_have(seen: Fleet) -> None:
    """The recorded sums know Slurm job, pod and unit, and lose no byte."""
    workloads = values(seen, "gpu-fleet", "mig", "Memory by workload")
    recorded = seen.answer(
        'sum(instance_user_workload:gpuagent_process_memory_used_bytes:sum{job="mig"})', instant=True
    )
    whole = seen.answer('sum(gpuagent_process_memory_used_bytes{job="mig"})', instant=True)

    assert workloads["slurm/48213"] == 47 * GIB
    assert workloads["vllm.service"] == 18 * GIB
    assert recorded[0]["value"][1] == whole[0]["value"][1] == str((4 + 14 + 18 + 6 + 47) * GIB)

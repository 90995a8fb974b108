"""The agent as Prometheus sees it: scraped by the real server, judged by its own tools."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.integration.agent import Agent, running_agent
from tests.integration.prometheus import Prometheus, running_prometheus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

GIB = 1024**3
CROWD_GPUS = 8
CROWD_BYTES = 65 * GIB
"""Of processes on each GPU: 32 x 1 GiB, 28 x 768 MiB, 4 x 3 GiB."""


# What Prometheus 2.42 sends (scrape/scrape.go).
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Agent]]:
    """Three agents: crowd, crowd with only 8 processes per GPU shown, and healthy."""
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "crowd": ("crowd", {}),
        "top": ("crowd", {"processes": {"top": 8}}),
        "healthy": ("healthy", {}),
    }
    with ExitStack() as stack:
        made = {
            job: stack.enter_context(running_agent(tmp_path_factory.mktemp(job), scenario, None, **keys))
            for job, (scenario, keys) in wanted.items()
        }
        for agent in made.values():
            agent.wait_until_ready()
        yield made


@pytest.fixture(scope="module")
def prometheus(agents: dict[str, Agent], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped each of them three times."""
    jobs = {job: agent.port for job, agent in agents.items()}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), jobs) as server:
        for job in jobs:
            server.wait_until(f'count_over_time(gpuagent_gpus{{job="{job}"}}[1m]) >= 3')
        yield server


@pytest.mark.needs("prometheus")
def test_every_scrape_is_taken_whole(agents: dict[str, Agent], prometheus: Prometheus) -> None:
    """EXP-04: no scrape fails, and no series of one is refused or doubled."""
    assert {point.labels["job"]: point.value for point in prometheus.query("up")} == dict.fromkeys(agents, 1)
    assert {job: target["lastError"] for job, target in prometheus.targets().items()} == dict.fromkeys(agents, "")
    lost = "scrape_samples_scraped - scrape_samples_post_metric_relabeling"
    assert {point.labels["job"]: point.value for point in prometheus.query(lost)} == dict.fromkeys(agents, 0)
    assert prometheus.query("min_over_time(up[5m]) == 0") == []


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("job", ["crowd", "top"])
def test_the_sum_of_the_processes_is_the_scenarios(prometheus: Prometheus, job: str) -> None:
    """EXP-03: the memory of all processes is told, also where most of them are summed up as `other`."""
    points = prometheus.query(f'sum by (gpu) (gpuagent_process_memory_used_bytes{{job="{job}"}})')

    assert {point.labels["gpu"]: point.value for point in points} == {
        str(index): CROWD_BYTES for index in range(CROWD_GPUS)
    }


@pytest.mark.needs("prometheus")
def test_what_is_shown_of_processes_is_bounded(prometheus: Prometheus) -> None:
    """EXP-03: with `processes.top: 8` a GPU has 8 processes and one sum of the rest."""
    points = prometheus.query('count by (gpu) (gpuagent_process_memory_used_bytes{job="top"})')
    others = prometheus.query('gpuagent_process_memory_used_bytes{job="top", process="other"}')

    assert {point.value for point in points} == {8 + 1}
    assert len(others) == CROWD_GPUS
    assert prometheus.query('sum(gpuagent_processes{job="top"})')[0].value == CROWD_GPUS * 64


@pytest.mark.needs("prometheus")
def test_processes_join_with_what_they_are(prometheus: Prometheus) -> None:
    """The join of the documentation gives each process its unit, once."""
    points = prometheus.query(
        'gpuagent_process_memory_used_bytes{job="crowd"} '
        "* on (job, instance, gpu, uuid, pid, gpu_instance_id, compute_instance_id) group_left (unit, command) "
        "gpuagent_process_info"
    )

    assert len(points) == CROWD_GPUS * 64
    assert {point.labels.get("unit") for point in points} >= {f"serve@{gpu}-0.service" for gpu in range(CROWD_GPUS)}


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("job", ["crowd", "top", "healthy"])
def test_promtool_finds_nothing_to_criticize(agents: dict[str, Agent], job: str) -> None:
    """EXP-04: names, help, types and units are what Prometheus' own linter asks for."""
    body = agents[job].get("/metrics").body
    checked = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)

    criticism = (checked.stdout + checked.stderr).decode()
    assert (checked.returncode, criticism) == (0, ""), f"a name, unit or help of gpuagent/core/metrics: {criticism}"


def test_prometheus_gets_openmetrics_in_gzip(agents: dict[str, Agent]) -> None:
    """The format and the coding are what Prometheus asks for, and both forms tell the same."""
    answer = agents["crowd"].get("/metrics", Accept=ACCEPT, Accept_Encoding="gzip")
    plain = agents["crowd"].get("/metrics")

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert len(answer.body) * 5 < len(plain.body)
    openmetrics = gzip.decompress(answer.body).decode()
    assert openmetrics.endswith("# EOF\n")
    series = [
        [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
        for families in (
            parse_openmetrics(openmetrics),  # type: ignore[no-untyped-call]
            parse_text(plain.text),
        )
    ]
    own = [{name for name in names if name[0].startswith("gpuagent_")} for names in series]
    assert own[0] == own[1] != set()
    assert len(series[1]) == len(set(series[1]))

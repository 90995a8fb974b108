"""The table of processes on the page."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

import pytest

from gpuagent.core.units import GIB
from gpuagent_exporters.page import page
from tests.exporters.page.test_page import Page
from tests.fakes.source import status_document


def table(hidden: bool = False, **changes: Any) -> str:
    """The text of the table of one process with `changes`."""
    process = {**status_document()["processes"][0], **changes}
    told = page.PageData(status_document(processes=[process]), hidden=hidden)
    return Page(page.render(told)).text.partition("None known.")[2].partition("Processes")[2].partition("GPUs 1")[0]


def test_a_leak_has_slope_verdict_evidence_and_time_to_full() -> None:
    """Growth is told an hour, since the pace of most leaks is lost in bytes a second, and the range it may lie in."""
    text = table(
        verdict="leaking",
        evidence="strict",
        growth_bytes_per_second=GIB / 3600,
        exhaustion_seconds=7200.0,
        exhaustion_range_seconds=[3600.0, 10800.0],
    )

    assert "+1.0 GiB/h" in text
    assert "leaking (strict)" in text
    assert "2 h1 h to 3 hleaking (strict)+1.0 GiB/h" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "steady"}, "steady"),
        ({"verdict": "cached"}, "cached, not leaked"),
        ({"verdict": "levelled off"}, "levelled off"),
        ({"verdict": "growing", "exhaustion_seconds": 45.0, "fast_exhaustion_seconds": 45.0}, "45 sgrowing"),
        ({"growth_bytes_per_second": 0.0}, "0 B/h"),
        ({"growth_bytes_per_second": -GIB / 3600}, "0 B/h"),
        (
            {"verdict": "leaking", "growth_state": "stopped: GPU full", "growth_bytes_per_second": 1e6},
            "leaking, stopped: GPU fullstopped",
        ),
        ({"exhaustion_seconds": 0.0, "exhaustion_range_seconds": [0.0, 0.0]}, "full now"),
        ({"exhaustion_seconds": 60.0, "exhaustion_range_seconds": [30.0, None]}, "1 min30 s or later"),
        ({"exhaustion_seconds": 1e300}, "\N{EN DASH}"),
    ],
)
def test_verdicts_are_words(changes: dict[str, Any], words: str) -> None:
    """What is harmless is called so, what is urgent stands out, and all of it without colors."""
    assert words in table(**changes)


def test_allocator_figures_where_there_is_a_client() -> None:
    """An app with the client shows what its allocator holds; without one there is no column of dashes."""
    text = table(reserved_bytes=6 * GIB, allocated_bytes=5 * GIB, cached_bytes=GIB, outside_bytes=GIB // 2)

    assert "5.0 GiB of 6.0 GiB reserved, 1.0 GiB cached, 512.0 MiB outside" in text
    assert "allocator" in text
    assert "allocator" not in table()


def test_users_and_commands_are_hidden_with_a_word() -> None:
    """Whoever may not see them is told so, not shown columns of dashes."""
    shown, hidden = table(), table(hidden=True)

    assert "alice" in shown
    assert "serve.py" in shown
    assert "alice" not in hidden
    assert "serve.py" not in hidden
    assert "Users and commands are shown on loopback" in hidden


def pids(query: str, *processes: dict[str, Any]) -> list[int]:
    """The pids of the rows, from the top, of the page at an address with this query."""
    row = status_document()["processes"][0]
    found = [{**row, "pid": number + 1, **each} for number, each in enumerate(processes)]
    body = page.render(
        page.PageData(status_document(processes=found)), view=page.view_of(dict(parse_qsl(query)))
    ).decode()
    return [int(pid) for pid in re.findall(r'<tr data-key="[^"]*/(\d+)"', body)]


SIZES = ({"memory_used_bytes": 9 * GIB}, {"memory_used_bytes": None}, {"memory_used_bytes": 900 * 2**20})


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("sort=memory", [1, 3, 2]),
        ("sort=memory&order=up", [3, 1, 2]),
        ("sort=pid", [3, 2, 1]),
        ("sort=nothing", [1, 3, 2]),
    ],
)
def test_the_address_sorts_by_value(query: str, wanted: list[int]) -> None:
    """900 MiB is less than 9 GiB; what is not known stands last, and a column that there is not changes nothing."""
    assert pids(query, *SIZES) == wanted


def test_what_is_full_soonest_comes_first() -> None:
    """The column that matters sorts by urgency, and without any column the gravest is on top."""
    late, soon, grave = {"exhaustion_seconds": 9e3}, {"exhaustion_seconds": 60.0}, {"severity": "critical"}

    assert pids("sort=full", late, soon, grave) == [2, 1, 3]
    assert pids("", late, soon, grave) == [3, 1, 2]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [("filter=user:ali", [1, 3]), ("filter=bob+serve", [2]), ("filter=%3Cscript%3E", []), ("filter=gpu:1", [3])],
)
def test_the_address_filters(query: str, wanted: list[int]) -> None:
    """By any field or by one, as in `gpuagent top`; the words are only text."""
    assert pids(query, {}, {"user": "bob"}, {"gpu": 1}) == wanted


def test_twenty_are_shown_until_all_are_asked_for() -> None:
    """A crowd does not bury the page: it says how many there are, and how to see them."""
    crowd: list[dict[str, Any]] = [{}] * 50

    assert len(pids("", *crowd)) == 20
    assert len(pids("all=1", *crowd)) == 50
    assert len(pids("filter=user:alice", *crowd)) == 20
    body = page.render(page.PageData(status_document(processes=status_document()["processes"] * 50))).decode()
    assert "20 of 50 processes" in body
    assert 'href="?all=1#processes"' in body


def test_what_matters_comes_first_on_a_phone() -> None:
    """The first three columns are who, how much, and how long it lasts."""
    body = page.render(page.PageData(status_document())).decode()

    assert re.findall(r'<th scope="col" data-key="(\w+)"', body)[:3] == ["process", "memory", "full"]


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ({"slurm_job": "48213"}, "job 48213"),
        ({"pod": "vllm-0", "namespace": "speech", "container_id": "1f0e"}, "speech/vllm-0"),
        ({"unit": "a.service"}, "a.service"),
        ({"unit": "", "container_id": "0123456789abcdef" * 4}, "container 0123456789ab"),
        ({"unit": "", "container_id": "unproven/" + "0123456789abcdef" * 4}, "container unproven/0123456789ab"),
        ({"unit": "", "container_id": "lxc/a-long-name-of-one"}, "container lxc/a-long-name-of-one"),
    ],
)
def test_it_says_to_whom_a_process_belongs(owner: dict[str, Any], words: str) -> None:
    """The nearest owner that a person can act on; a container's id is short, as the tools show it."""
    text = table(**owner)

    assert words in text
    assert "cdef" not in text

"""The table of processes on the page."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.units import GIB
from gpuagent_exporters.page import page
from tests.exporters.page.test_page import Page
from tests.fakes.source import status_document


def table(hidden: bool = False, **changes: Any) -> str:
    """The text of the table of one process with `changes`."""
    process = {**status_document()["processes"][0], **changes}
    told = page.Told(status_document(processes=[process]), hidden=hidden)
    return Page(page.render(told)).text.partition("None.")[0].rpartition("Processes")[2]


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
    assert "2 h1 h to 3 h" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "steady"}, "steady"),
        ({"verdict": "cached"}, "cached, not leaked"),
        ({"verdict": "levelled off"}, "levelled off"),
        ({"verdict": "growing", "exhaustion_seconds": 45.0, "fast_exhaustion_seconds": 45.0}, "growing45 s"),
        ({"growth_bytes_per_second": 0.0}, "0 B/h"),
        ({"growth_bytes_per_second": -GIB / 3600}, "0 B/h"),
        (
            {"verdict": "leaking", "growth_state": "stopped: GPU full", "growth_bytes_per_second": 1e6},
            "stoppedleaking, s",
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


def test_figures_are_sorted_by_value_not_by_text() -> None:
    """900 MiB comes before 10 GiB: cells carry the number; what is not known carries none."""
    drawn = page.render(page.Told(status_document())).decode()

    assert f'data-value="{58 * GIB}"' in drawn
    assert drawn.count("data-value=") == 3  # GPU, pid and memory: nothing else is known of this process


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ({"slurm_job": "48213"}, "job 48213"),
        ({"pod": "vllm-0", "container_id": "1f0e"}, "pod vllm-0"),
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

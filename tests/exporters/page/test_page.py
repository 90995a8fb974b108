"""The page for a person with a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_exporters.page import page
from tests.fakes.source import status_document

VOID = {"meta", "br", "link"}


class Page(HTMLParser):
    """A page taken apart: its text, its tags, and whether every tag is closed in its place."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(body.decode("utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(**changes: Any) -> Page:
    """The page over a status document with `changes`."""
    return Page(page.render(page.PageData(status_document(**changes)), "node1"))


def gpu(**changes: Any) -> list[dict[str, Any]]:
    """The document's one GPU with `changes`."""
    return [{**status_document()["gpus"][0], **changes}]


def test_a_healthy_node() -> None:
    """Name, memory, process and age of the data are there, and no problem."""
    text = shown().text

    assert "gpuagent · node1" in text
    assert "data is 400 ms old" in text
    assert "60.0 GiB of 80.0 GiB · 75 %" in text
    assert "unattributed 2.0 GiB" in text
    assert "python3 serve.py --port 8000" in text
    assert "None known." in text
    assert "SIMULATED" not in text
    assert "STALE" not in text


def test_problems_come_first_and_in_words() -> None:
    """What is wrong stands above the GPUs, with its severity as a word and what to do."""
    problem = {"severity": "critical", "gpu": 0, "text": "GPU 0 is lost", "advice": "Reboot."}
    text = shown(problems=[problem]).text

    assert "CRITICAL GPU 0 is lost" in text
    assert text.index("Reboot.") < text.index("NVIDIA H100")


def test_simulated_is_said() -> None:
    """Nobody takes a simulated node for a real one."""
    agent = {**status_document()["agent"], "simulated": "leak"}

    assert "SIMULATED: no real GPU is shown here (scenario leak)" in shown(agent=agent).text


@pytest.mark.parametrize(("age", "interval", "stale"), [(4.9, 1.0, False), (5.1, 1.0, True), (20.0, 10.0, False)])
def test_stale_data_is_said(age: float, interval: float, stale: bool) -> None:
    """Old figures are not shown as if they were new."""
    agent = {**status_document()["agent"], "poll_interval_seconds": interval}

    assert ("STALE" in shown(age_seconds=age, agent=agent).text) is stale


def test_no_data_is_said() -> None:
    """EXP-06: before the first measurement the page says that there is none."""
    text = shown(age_seconds=None, gpus=[], processes=[], node={}).text

    assert "NO DATA: nothing has been measured yet" in text
    assert "No process uses a GPU" in text


def test_a_lost_gpu_has_no_figures() -> None:
    """EXP-05: a GPU that is lost shows its state and the reason, never the last good values."""
    lost = shown(gpus=gpu(state="lost", reason="NVML says GPU_IS_LOST"))

    assert "LOST" in lost.text
    assert "GPU_IS_LOST" in lost.text
    assert "60.0 GiB" not in lost.text
    assert "LOST" in lost.text


def test_a_gpu_that_another_one_stands_in_for_is_told_apart() -> None:
    """After a reload of the driver two GPUs may have one index: the one that is away has it no more."""
    away, here = gpu(state="lost", uuid="GPU-a")[0], gpu(uuid="GPU-b")[0]
    both = shown(gpus=[away, here])
    assert both.text.count(f"formerly GPU {away['index']}") == 1
    assert "formerly" not in shown(gpus=[away]).text


def test_unknown_is_a_dash_not_zero() -> None:
    """What the driver does not tell is not drawn as nothing."""
    nothing = dict.fromkeys(status_document()["gpus"][0])
    text = shown(gpus=[{**nothing, "state": "ok", "index": 0}]).text

    assert "\N{EN DASH} of \N{EN DASH} · \N{EN DASH}" in text
    assert "0 B" not in text


def test_without_points_there_is_a_bar_to_scale() -> None:
    """Before anything was kept the bar shows the memory of now: its parts add up to the used share."""
    widths = [float(str(value)[:-1]) for key, value in shown().attributes if key == "width" and "%" in str(value)]

    assert sum(widths) == pytest.approx(75.0)


def test_what_is_used_beside_a_gpu_is_told() -> None:
    """NUM-05: of memory that GPU and CPU share nothing is without an owner: the machine uses the rest."""
    text = shown(gpus=gpu(memory_kind="unified", memory_host_bytes=9 * 1024**3)).text

    assert "beside the GPU 9.0 GiB" in text
    assert "unattributed" not in text


def test_mig_instances_and_slowdown_are_told() -> None:
    """Each MIG instance has its own memory, told once however many share it; a slowed-down GPU says why."""
    shared = {"gpu_instance_id": 2, "memory_used_bytes": 1024**3, "memory_total_bytes": 40 * 1024**3}
    full = {"memory_used_bytes": 38 * 1024**3, "memory_free_bytes": 0, "memory_total_bytes": 40 * 1024**3}
    mig = [
        {"profile": "1c.3g.40gb", **shared},
        {"profile": "2c.3g.40gb", **shared},
        {"profile": "3g.40gb", "gpu_instance_id": 1, **full},
    ]
    drawn = shown(gpus=gpu(mig=mig, throttle_reasons=["hw_thermal"]))
    text = drawn.text

    assert text.count("MIG 2 3g.40gb: 1.0 GiB of 40.0 GiB · 2 %") == text.count("3g.40gb: 1.0 GiB") == 1
    assert "MIG 1 3g.40gb: 38.0 GiB of 38.0 GiB · 100 %" in text
    assert ("class", "critical") in drawn.attributes  # the driver's reserve leaves nothing free
    assert "Slowed down: hw_thermal" in text


def test_dead_processes_are_marked() -> None:
    """A process that /proc does not know is shown as dead, in words."""
    process = {**status_document()["processes"][0], "state": "dead", "process": ""}

    assert "(dead)" in shown(processes=[process]).text


HOSTILE = "</td><script>alert(1)</script>\"'><img src=x onerror=y>\N{RIGHT-TO-LEFT OVERRIDE}"


@given(
    st.sampled_from(["process", "user", "command", "unit", "pod", "state", "pid", "gpu"]),
    st.one_of(st.just(HOSTILE), st.text(st.characters(), max_size=40)),
)
def test_hostile_names_are_only_text(key: str, value: str) -> None:
    """Whatever a process calls itself stays text: no tag, no attribute, nothing beside it moves."""
    process = {**status_document()["processes"][0], key: value}
    drawn = shown(processes=[process])

    isolated = {"bdi"}  # around every value that is not empty
    assert [tag for tag in drawn.tags if tag not in isolated] == [tag for tag in shown().tags if tag not in isolated]


def test_hostile_names_elsewhere() -> None:
    """GPU names, problems and the host's name are escaped too, in the title as well."""
    document = status_document(
        problems=[{"severity": HOSTILE, "text": HOSTILE, "advice": HOSTILE}],
        gpus=gpu(name=HOSTILE, uuid=HOSTILE),
        node={"driver_version": HOSTILE},
    )
    drawn = Page(page.render(page.PageData(document), HOSTILE))

    assert "img" not in drawn.tags
    assert drawn.tags.count("script") == shown().tags.count("script")
    assert drawn.text.count("<script>alert(1)</script>") >= 6


def test_nothing_is_fetched_from_elsewhere() -> None:
    """No script in the page itself, no request to another host, no inline style that the policy would refuse."""
    body = page.render(page.PageData(status_document())).decode()

    assert re.findall(r"<script[^>]*>(.*?)</script>", body) == [""]
    assert not re.search(r"https?://|url\(|@import|<style| style=| on\w+=", body)
    assert "unsafe" not in page.CONTENT_SECURITY_POLICY
    assert "http" not in page.CONTENT_SECURITY_POLICY


def test_without_a_script_the_page_still_refreshes() -> None:
    """In a browser without scripts, or in a text browser, everything is there and stays new."""
    body = page.render(page.PageData(status_document())).decode()

    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in body


def test_many_processes_are_cut_and_counted() -> None:
    """The table is bounded, and says what it leaves out."""
    processes = status_document()["processes"] * 1003

    body = page.render(page.PageData(status_document(processes=processes)), view=page.view_of({"all": "1"}))
    assert "3 more in /api/v1/processes" in Page(body).text


def test_a_lost_gpu_says_when_it_was_read() -> None:
    """Its memory of now is not drawn, and it comes before those that are well."""
    away = {**gpu(state="lost", reason="gone", age_seconds=90.0)[0], "index": 1, "uuid": "GPU-b"}
    text = shown(gpus=[*gpu(), away]).text

    assert "last read: 1 min 30 s ago" in text
    assert text.index("GPU 1 LOST") < text.index("GPU 0 ")


@pytest.mark.parametrize(("age", "old"), [(4.0, False), (40.0, True)])
def test_an_old_reading_is_called_old(age: float, old: bool) -> None:
    """EXP-05: one GPU that has not been read says so on its card, while the others are new."""
    assert ("OLD read 40 s ago" in shown(gpus=gpu(age_seconds=age)).text) is old


def test_a_gpu_that_fills_up_says_when_it_is_full() -> None:
    """LEAK-04: in the words of every surface, and in the past where growth has stopped."""
    assert (
        "leaking (strict), full in 2 h"
        in shown(gpus=gpu(verdict="leaking", evidence="strict", exhaustion_seconds=7200.0)).text
    )
    assert "growing, full in 1 min 30 s" in shown(gpus=gpu(verdict="growing", exhaustion_seconds=90.0)).text
    full = gpu(verdict="leaking", growth_state="stopped: GPU full", growth_bytes_per_second=1e6, exhaustion_seconds=0.0)
    assert "leaking, 3.4 GiB/h until the GPU was full" in shown(gpus=full).text
    assert "ull in" not in shown(gpus=gpu()).text.partition("Processes")[0].partition("GPUs")[2]


def test_the_navigation_counts_what_there_is() -> None:
    """On a phone the chapters are far apart: the top says where to look, and leads only to what is there."""
    drawn = shown(problems=[{"severity": "info", "text": "x"}] * 2)
    links = [value for key, value in drawn.attributes if key == "href" and str(value).startswith("#")]

    assert "GPUs 1Problems 2Processes 1" in drawn.text.partition("NVIDIA")[0]
    assert links == ["#problems", "#gpus", "#problems", "#processes"]
    assert {str(link)[1:] for link in links} <= {value for key, value in drawn.attributes if key == "id"}


def test_what_could_not_be_read_is_not_empty() -> None:
    """A part whose document failed says so: nothing there would look as if nothing was wrong."""
    told = page.PageData(status_document(), alerts={"message": "no <store>"}, remedies={"message": "no store"})
    text = Page(page.render(told)).text

    assert text.count("UNKNOWN: could not be read: no ") == 2
    assert "no <store>" in text

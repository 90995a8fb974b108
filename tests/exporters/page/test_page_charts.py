"""The headline, the chart of memory by process, and the picture that explains a leak."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.palette import ON_DARK, ColorAssignment
from gpuagent.core.units import GIB
from gpuagent.top.look import ProcessColors
from gpuagent_exporters.charts import Chart, Charts
from gpuagent_exporters.history import GpuLines, History, ProcessLine
from gpuagent_exporters.page import page
from gpuagent_exporters.page.headline import headline_of
from tests.exporters.page.evidence import evidence
from tests.exporters.page.test_page import HOSTILE, Page, gpu
from tests.exporters.test_history_document import process, tick
from tests.fakes.source import status_document

Document = dict[str, Any]


def line(pid: int, *values: float | None, name: str = "python3") -> ProcessLine:
    """A process on the GPU, in GiB."""
    return ProcessLine(MemoryKey("GPU-0000", pid), None, name, [None if one is None else one * GIB for one in values])


def drawn(lines: list[ProcessLine], used: list[float | None], *, left_out: int = 0, **changes: Any) -> str:
    """The page over one GPU with these lines, in GiB, a point a minute."""
    points = [None if one is None else one * GIB for one in used]
    of_gpu = GpuLines(6, points, points, [0.5] * len(used), lines, left_out)
    colors = {("GPU-0000", each.memory.pid): number for number, each in enumerate(lines)}
    chart = Chart(3600.0, 3600.0, 60.0, {"GPU-0000": of_gpu}, colors)
    told = page.PageData(status_document(gpus=gpu(**changes)), chart=chart)
    return page.render(told).decode()


def tops(body: str) -> dict[str, list[int]]:
    """The heights of each area above zero, by the name of its layer, from the left."""
    areas = re.findall(r'class="area [^"]*" d="([^"]*)" data-name="([^"]*)"', body)
    return {name: [2000 - int(y) for y in re.findall(r"L\d+ (\d+)", path)] for path, name in areas}


def test_memory_is_stacked_up_to_the_capacity() -> None:
    """Each area lies on those below it, the largest process lowest, and the whole is as high as what is used."""
    found = tops(drawn([line(1, 10, 10), line(2, 40, 40)], [50.0, 50.0]))

    full = 2000 / 1.06
    assert found["python3 (2)"][0] == pytest.approx(full * 40 / 80, abs=1)
    assert found["python3 (1)"][0] == pytest.approx(full * 50 / 80, abs=1)
    assert f'class="capacity" d="M0 {round(2000 - full)}' in drawn([line(1, 10, 10)], [50.0, 50.0])


def test_a_gap_is_no_zero() -> None:
    """EXP-05: where nothing was read nothing is drawn, and the area goes on behind it."""
    body = drawn([line(1, 10, None, 10, 10)], [20.0, None, 20.0, 20.0])

    (path,) = re.findall(r'class="area c0" d="([^"]*)"', body)
    assert path.count("Z") == 2


def test_the_forecast_is_drawn_to_the_moment_at_which_it_is_full() -> None:
    """LEAK-04: a dashed line up to the capacity, with the moment in words; what is far away leaves the chart."""
    rising: list[float | None] = [40.0 + number for number in range(20)]
    soon = drawn([line(1, *rising)], rising, verdict="leaking", exhaustion_seconds=495.0)
    late = drawn([line(1, *rising)], rising, verdict="leaking", exhaustion_seconds=9e5)

    for words in ('class="forecast"', 'class="full"', 'class="baseline"', ">full in 8 min 15 s<"):
        assert words in soon
    assert 'class="forecast"' in late
    assert 'class="full"' not in late
    assert "\N{RIGHTWARDS ARROW}<" in late
    assert 'class="forecast"' not in drawn([line(1, *rising)], rising)


def test_a_lost_gpu_keeps_its_last_hour() -> None:
    """What was read before it was lost is drawn, with its figures of then, and hatched from there on."""
    lines = GpuLines(
        6, [5.0 * GIB, 6.0 * GIB, None, None], [None] * 4, [None] * 4, [line(2, 5, 6, None, None)], 0, 80 * GIB
    )
    lost = gpu(state="lost", memory_total_bytes=None, memory_used_bytes=None, uuid="a")
    body = page.render(
        page.PageData(status_document(gpus=lost), chart=Chart(3600.0, 3600.0, 60.0, {"a": lines}))
    ).decode()

    assert 'class="away"' in body
    assert "not read since" in body
    assert "when it was last read 6.0 GiB of 80.0 GiB" in body
    assert "<bdi>python3 (2)</bdi> <b>6.0 GiB</b>" in body


def test_others_are_counted_and_named() -> None:
    """A crowd is one area: how many they are is told, and memory of no process is told apart from them."""
    assert "58 other processes" in drawn([line(1, 10, 10)], [50.0, 50.0], left_out=58)


def test_a_hostile_name_is_only_text_in_a_chart() -> None:
    """No name gets out of the attribute or the title that it stands in."""
    page_drawn = Page(drawn([line(1, 10, 10, name=HOSTILE)], [50.0, 50.0]).encode())

    assert "img" not in page_drawn.tags
    assert page_drawn.tags.count("script") == 1


def test_a_process_has_one_color_everywhere() -> None:
    """Its area, its place in the legend and its row are of one class."""
    row = {**status_document()["processes"][0], "gpu_uuid": "GPU-0000", "pid": 2}
    lines = GpuLines(6, [5.0, 5.0], [5.0, 5.0], [0.1, 0.1], [line(2, 1, 1)], 0)
    chart = Chart(3600.0, 3600.0, 60.0, {"GPU-0000": lines}, {("GPU-0000", 2): 5})
    body = page.render(page.PageData(status_document(processes=[row]), chart=chart)).decode()

    assert body.count('class="area c5"') == body.count('<li class="c5"') == body.count('class="c5"><td') == 1


def test_colors_stay_and_differ_on_one_gpu() -> None:
    """Who was drawn keeps the color; those that are drawn together have different ones while there are enough."""
    a, b, c, d = (1, "a"), (5, "b"), (3, "c"), (9, "d")
    colors = ColorAssignment(4)
    first = colors.assign([[b, a], [c]], {a, b, c})
    later = colors.assign([[d, b, a]], {a, b, d})

    assert first == {a: 1, b: 2, c: 3}
    assert (later[a], later[b]) == (first[a], first[b])
    assert len(set(later.values())) == 3


def test_the_page_and_top_give_a_process_the_same_color() -> None:
    """Neither knows of the other: the color follows from the pid, in whatever order they are drawn."""
    rows = [{"gpu_uuid": uuid, "pid": pid} for uuid, pid in (("a", 41), ("a", 49), ("b", 41), ("b", 12))]
    top = ProcessColors()
    top.update(rows)
    x, y, z = (41, "x"), (49, "y"), (12, "z")
    of_page = ColorAssignment().assign([[z, x], [y, x]], {x, y, z})

    assert [top.style_of(row) for row in rows] == [ON_DARK[of_page[who]] for who in (x, y, x, z)]


def test_a_day_is_kept_by_five_minutes() -> None:
    """The long ranges reach beyond the hour, the short ones keep their 10 s, and each says how much there is."""
    hour = History()
    charts = Charts(hour)
    for minute in range(0, 200, 2):
        snapshot = tick(60.0 * minute, process(7, GIB), used=2 * GIB)
        hour.add(snapshot)
        charts.add(snapshot)

    day, last = charts.chart("1d"), charts.chart("15m")
    assert day.step_seconds * len(day.gpus["a"].used) == pytest.approx(200 * 60, abs=600)
    assert last.step_seconds * len(last.gpus["a"].used) == pytest.approx(900, abs=60)
    assert day.known_seconds > 3600
    assert day.colors == last.colors == {("a", 7): 7}


def test_what_grows_is_drawn_however_small() -> None:
    """A leak that has only begun is not hidden among the others."""
    hour = History()
    crowd = [process(pid, pid * GIB) for pid in range(1, 11)]
    hour.add(tick(0.0, *crowd, used=60 * GIB))
    charts = Charts(hour)

    small = MemoryKey("a", 1)
    assert small not in {one.memory for one in charts.chart("1h").gpus["a"].processes}
    assert small in {one.memory for one in charts.chart("1h", {small}).gpus["a"].processes}


LEAK = {"severity": "critical", "kind": "leak", "gpu": 0, "pid": 4242, "text": "GPU 0: long", "advice": "Restart it."}
FULL = {"severity": "critical", "kind": "memory_full", "gpu": 0, "text": "GPU 0: memory is 100 % full"}
LEAKING = {"process": "embed-server", "verdict": "leaking", "growth_bytes_per_second": 84.4 * GIB / 3600}


@pytest.mark.parametrize(
    ("changes", "severity", "sentence"),
    [
        ({}, "ok", "The GPU is healthy: 60.0 GiB of 80.0 GiB used (75 %), 1 process."),
        ({"gpus": []}, "warning", "There is no GPU on this node."),
        ({"age_seconds": None}, "warning", "Nothing has been measured yet."),
        (
            {"gpus": gpu(verdict="growing", growth_bytes_per_second=GIB / 3600)},
            "info",
            "No problem yet: the memory of GPU 0 grows by 1.0 GiB/h.",
        ),
        ({"problems": [{"severity": "info", "text": "x"}]}, "info", "The GPU is healthy"),
        ({"problems": [{"severity": "critical", "text": "GPU 3: it is lost"}]}, "critical", "GPU 3: it is lost."),
        (
            {"problems": [LEAK], "gpus": gpu(exhaustion_seconds=495.0)},
            "critical",
            "GPU 0 will be full in 8 min 15 s: \u2068embed-server\u2069 leaks 84.4 GiB/h.",
        ),
        (
            {"problems": [LEAK], "gpus": gpu(exhaustion_seconds=0.0)},
            "critical",
            "GPU 0 is full: \u2068embed-server\u2069 leaks 84.4 GiB/h.",
        ),
        (
            {"problems": [FULL, LEAK], "gpus": gpu(exhaustion_seconds=None)},
            "critical",
            "GPU 0 is full: \u2068embed-server\u2069 leaks 84.4 GiB/h.",
        ),
        ({"problems": [{"severity": "warning", "text": "the disk is full"}]}, "warning", "The disk is full."),
        ({"problems": [{"severity": "warning", "text": "web-1 is off"}]}, "warning", "web-1 is off."),
        ({"gpus": gpu(state="lost", reason="it is gone")}, "critical", "GPU 0 is lost: it is gone."),
        ({"problems": [LEAK]}, "critical", "\u2068embed-server\u2069 leaks 84.4 GiB/h on GPU 0."),
    ],
)
def test_the_node_in_one_sentence(changes: Document, severity: str, sentence: str) -> None:
    """What is gravest, when the GPU is full and who fills it; that all is well only where it was measured."""
    process = {**status_document()["processes"][0], **LEAKING}
    found = headline_of(status_document(processes=[process]) | changes)

    assert found.severity == severity
    assert found.text.startswith(sentence)


def test_a_name_cannot_turn_the_sentence() -> None:
    """Characters that turn text around are taken out of the name, and it is isolated."""
    process = {**status_document()["processes"][0], **LEAKING, "process": "a\u202eb\u2069"}
    assert "\u2068ab\u2069 leaks" in headline_of(status_document(processes=[process], problems=[LEAK])).text


def explained(**changes: Any) -> str:
    """The page over a leak with its evidence."""
    process = {**status_document()["processes"][0], **LEAKING, "gpu_uuid": "GPU-0000", "cached_bytes": GIB // 2}
    return page.render(page.PageData(status_document(processes=[process]), leaks=[evidence(**changes)])).decode()


def test_a_leak_explains_itself() -> None:
    """Baseline, the window that was judged, what was free, the forecast, and that nobody can tell a cache apart."""
    body = explained()

    for words in ('class="baseline"', 'class="band"', 'class="free"', 'class="forecast"', "free memory: 60.0 GiB"):
        assert words in body
    assert "strict: +8.0 GiB in 8 min" in body
    assert "The app runs without gpuagent-client" in body
    assert 'class="tensors"' not in body


def test_tensors_prove_that_it_is_no_cache() -> None:
    """Where the app tells of its allocator, its tensors are drawn and said to have grown."""
    body = explained(allocated=True)

    assert 'class="tensors"' in body
    assert (
        "No cache of the allocator: tensors grew from 9.0 GiB to 18.0 GiB, and the allocator caches 512.0 MiB" in body
    )


def test_evidence_without_points_is_told_in_words() -> None:
    """A leak that was restored from the store may have no history yet: nothing is drawn, and nothing fails."""
    body = explained(points=[], standards=[])

    assert "is called leaking" in body
    assert re.search(r'href="api/v1/leaks/\d+/plot\.svg\?gpu=GPU-', body)
    assert 'class="baseline"' not in body

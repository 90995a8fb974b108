"""What the page is made of, over a real connection: its files, the points of its charts, and further documents."""

from __future__ import annotations

import gzip
import logging
import re
from importlib.resources import files

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.palette import ON_DARK, ON_LIGHT
from gpuagent_exporters.api.alert_routes import NotNow
from gpuagent_exporters.api.routes import Document, PageDocuments, build_app
from gpuagent_exporters.history import History
from gpuagent_exporters.page.assets import ASSETS
from tests.exporters.page.evidence import evidence
from tests.exporters.wire import Answer, ask, run, serving
from tests.fakes.source import FakeCharts, FakePoints, FakeSource, status_document


def answer(source: FakeSource, path: str, documents: PageDocuments | None = None, **headers: str) -> Answer:
    """What a server over `source`, whose page shows these further documents, answers."""

    async def test() -> Answer:
        async with serving(build_app(source, page_documents=documents)) as server:
            return await ask(server, path, **headers)

    return run(test())


def test_the_page_loads_only_what_is_served() -> None:
    """Every file that the page and its scripts name is there, with its type, under the page's own address."""
    body = answer(FakeSource(), "/").body.decode()
    scripts = [ASSETS[name].body.decode() for name in ASSETS if name.endswith(".js")]
    named = set(re.findall(r'(?:href|src)="assets/([^"]+)"', body))
    for script in scripts:
        named |= set(re.findall(r'from "\./([^"]+)"', script))

    assert named == set(ASSETS)
    for name in named:
        got = answer(FakeSource(), f"/assets/{name}")
        assert (got.status, got.headers["content-type"].partition(";")[0]) == (200, ASSETS[name].media_type)


def test_every_file_of_the_folder_is_served() -> None:
    """A file that nobody serves is in the wheel for nothing."""
    folder = files("gpuagent_exporters.page").joinpath("assets")

    assert {entry.name for entry in folder.iterdir()} == set(ASSETS)


def test_the_scripts_are_small() -> None:
    """All of them together are less than 60 KB: the page is there at once, also through a slow tunnel."""
    assert 1000 < sum(len(asset.body) for name, asset in ASSETS.items() if name.endswith(".js")) < 60_000


def test_the_style_has_the_colors_of_processes() -> None:
    """A process has the same hue on the page as on the terminal: the style is written by the common palette."""
    style = ASSETS["page.css"].body.decode()

    light, dark = (
        dict(re.findall(r"--c(\d): (#\w+);", part)) for part in style.split("prefers-color-scheme: dark")[:2]
    )
    assert tuple(light.values()) == ON_LIGHT
    assert tuple(dark.values()) == ON_DARK


@pytest.mark.parametrize(
    ("query", "wanted"), [("", "1h"), ("?range=15m", "15m"), ("?range=1d", "1d"), ("?range=9y", "1h")]
)
def test_the_address_says_which_range_is_drawn(query: str, wanted: str) -> None:
    """What is not understood is ignored, and a process that grows is drawn however small it is."""
    process = {**status_document()["processes"][0], "gpu_uuid": "GPU-0000", "verdict": "growing"}
    source = FakeSource(status=status_document(processes=[process]))
    charts = source.charts = FakeCharts()

    assert answer(source, f"/{query}").status == 200
    assert charts.asked == [(wanted, frozenset({MemoryKey("GPU-0000", 4242)}))]


def test_a_leak_is_explained_and_a_fault_of_that_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The evidence is asked for by pid and GPU; where it cannot be had the page is there without it."""
    process = {**status_document()["processes"][0], "gpu_uuid": "GPU-0000", "verdict": "leaking"}
    source = FakeSource(status=status_document(processes=[process]))
    asked: list[tuple[int, str]] = []

    def explain(pid: int, gpu: str) -> Document:
        asked.append((pid, gpu))
        return evidence()

    def broken(pid: int, gpu: str) -> Document:
        raise RuntimeError(f"{pid} {gpu}")

    body = answer(source, "/", PageDocuments(explain=explain)).body.decode()
    assert asked == [(4242, "GPU-0000")]
    assert "is called leaking" in body
    with caplog.at_level(logging.ERROR):
        body = answer(source, "/", PageDocuments(explain=broken)).body.decode()
    assert "NVIDIA H100" in body
    assert [record.message for record in caplog.records] == ["the page could not read the evidence"]


def test_a_browser_keeps_a_file_until_it_changes() -> None:
    """It asks each time, and gets the file once: after an upgrade page and scripts are of one version."""
    first = answer(FakeSource(), "/assets/page.js", accept_encoding="gzip")
    again = answer(FakeSource(), "/assets/page.js", if_none_match=f"W/{first.headers['etag']}")
    changed = answer(FakeSource(), "/assets/page.js", if_none_match='"another"')

    assert gzip.decompress(first.body) == ASSETS["page.js"].body
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status, again.body) == (304, b"")
    assert changed.status == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e", "page.css%00"])
def test_nothing_else_is_served(name: str) -> None:
    """Only the files of the list, by their names: no path leads out of the folder."""
    assert answer(FakeSource(), f"/assets/{name}").status == 404


def test_history_is_asked_with_its_cursor() -> None:
    """`since` and `top` reach the ring, and the answer is its document."""
    source = FakeSource()
    points = source.history = FakePoints({"schema": 1, "gpus": [], "cursor": "5-7"})
    got = answer(source, "/api/v1/history?since=5-6&top=3")

    assert points.asked == [("5-6", 3)]
    assert got.json()["cursor"] == "5-7"


@pytest.mark.parametrize("query", ["since=x", "since=5-6-7", "since=-5", "top=-1", "top=17", "top=many", "top=%C2%B2"])
def test_a_bad_question_is_told_why(query: str) -> None:
    """Bad input costs nothing but a 400 with words."""
    source = FakeSource()
    source.history = History()
    got = answer(source, f"/api/v1/history?{query}")

    assert got.status == 400
    assert "must be" in got.json()["message"]


def test_the_page_shows_what_the_address_tells() -> None:
    """Where an address tells of no alerts or remedies, the page has no chapter of them."""

    async def alerts() -> Document:
        return {"alerts": [{"name": "Mine", "state": "firing", "severity": "info"}]}

    with_alerts = answer(FakeSource(), "/", PageDocuments(alerts=alerts)).body.decode()
    without = answer(FakeSource(), "/").body.decode()

    assert "<bdi>Mine</bdi>" in with_alerts
    assert "Remedies" not in with_alerts
    assert "Incidents" not in without


def test_an_open_address_shows_no_texts_of_alerts() -> None:
    """They may name users, and the page must not tell what the table hides."""

    async def alerts() -> Document:
        one = {"name": "Mine", "state": "firing", "severity": "info", "annotations": {"summary": "ask alice"}}
        return {"alerts": [one]}

    async def body(show_commands: bool) -> str:
        app = build_app(FakeSource(), show_commands=show_commands, page_documents=PageDocuments(alerts=alerts))
        async with serving(app) as server:
            return (await ask(server, "/")).body.decode()

    assert "ask alice" in run(body(show_commands=True))
    assert "alice" not in run(body(show_commands=False))


def test_a_broken_part_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Where the store fails the page says so in its place; the rest is there, and the log has it once."""

    async def broken() -> Document:
        raise RuntimeError("the store is closed")

    async def refused() -> Document:
        raise NotNow("the disk is full")

    async def test() -> list[Answer]:
        documents = PageDocuments(alerts=refused, remedies=broken)
        async with serving(build_app(FakeSource(), page_documents=documents)) as server:
            return [await ask(server, "/") for _ in range(3)]

    with caplog.at_level(logging.ERROR):
        bodies = [got.body.decode() for got in run(test())]

    assert all("could not be read: <bdi>the disk is full</bdi>" in body for body in bodies)
    assert all("could not be read: <bdi>this is a fault of gpuagent" in body for body in bodies)
    assert "NVIDIA H100" in bodies[0]
    assert [record.message for record in caplog.records] == ["the page could not read the remedies"]

"""What the page is made of, over a real connection: its files, the points of its charts, and further documents."""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from importlib.resources import files

import pytest

from gpuagent_exporters.api.alert_routes import NotNow
from gpuagent_exporters.api.routes import Document, PageDocuments, build_app
from gpuagent_exporters.history import History
from gpuagent_exporters.page.assets import ASSETS
from tests.exporters.wire import Answer, ask, run, serving
from tests.fakes.source import FakePoints, FakeSource


def answer(source: FakeSource, path: str, documents: PageDocuments | None = None, **headers: str) -> Answer:
    """What a server over `source`, whose page shows these further documents, answers."""

    async def test() -> Answer:
        async with serving(build_app(source, page_documents=documents)) as server:
            return await ask(server, path, **headers)

    return run(test())


def test_the_page_loads_only_what_is_served() -> None:
    """Every file that the page and its scripts name is there, with its type, under the page's own address."""
    body = answer(FakeSource(), "/").body.decode()
    scripts = [ASSETS[name].body.decode() for name in ASSETS if name.endswith(".js") and name != "uPlot.js"]
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


def test_uplot_is_the_release_with_its_license() -> None:
    """What is vendored is the untouched file of uPlot 1.6.32 from the npm registry, and its license is beside it."""
    digest = hashlib.sha256(ASSETS["uPlot.js"].body).hexdigest()

    assert digest == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert b"The MIT License" in ASSETS["uPlot-LICENSE.txt"].body


def test_a_browser_keeps_a_file_until_it_changes() -> None:
    """It asks each time, and gets the file once: after an upgrade page and scripts are of one version."""
    first = answer(FakeSource(), "/assets/uPlot.js", accept_encoding="gzip")
    again = answer(FakeSource(), "/assets/uPlot.js", if_none_match=f"W/{first.headers['etag']}")
    changed = answer(FakeSource(), "/assets/uPlot.js", if_none_match='"another"')

    assert gzip.decompress(first.body) == ASSETS["uPlot.js"].body
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
    assert "Alerts" not in without


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

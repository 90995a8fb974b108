"""The description of the API: every route is in it, documents keep to it, and the files made of it are current."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest
from hypothesis import given, settings
from starlette.routing import BaseRoute, Route

from gpuagent.clients.documents import Findings, HolderGroup, Line
from gpuagent.core.growth import Evidence, GrowthState, Verdict
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Snapshot
from gpuagent.core.xids import Severity
from gpuagent_alerts.alert import Status
from gpuagent_alerts.notify.silences import SilenceState
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_exporters.api import openapi, reference
from gpuagent_exporters.api import process_routes as remedy_routes_module
from gpuagent_exporters.api.alert_routes import alert_routes, leak_command_routes, leak_routes, read_routes
from gpuagent_exporters.api.control import control_routes
from gpuagent_exporters.api.process_routes import (
    client_command_routes,
    client_routes,
    remedy_command_routes,
    remedy_routes,
)
from gpuagent_exporters.api.routes import MOST, TOP, build_app
from gpuagent_exporters.api.usage_routes import usage_routes
from gpuagent_exporters.history import History
from gpuagent_exporters.page.assets import ASSETS
from gpuagent_exporters.status.document import SCHEMA, processes_document, status_document
from tests.exporters.wire import Answer, ask, run, serving
from tests.fakes.any_snapshot import snapshots
from tests.fakes.openapi import OPERATIONS, SCHEMAS, faults_of, plain_route
from tests.fakes.source import FakeSource

GROWTH: Mapping[str, Iterable[str]] = {
    "verdict": Verdict, "growth_state": GrowthState, "severity": Severity, "evidence": Evidence,
}  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"


class Nobody:
    """Routes are made without asking their source of anything."""

    def __getattr__(self, name: str) -> Any:
        return None


NOBODY = cast("Any", Nobody())
READ = (
    *read_routes(NOBODY),
    *client_routes(NOBODY),
    *remedy_routes(NOBODY),
    *leak_routes(NOBODY),
    *usage_routes(NOBODY),
)
COMMANDS = (
    *control_routes(NOBODY), *alert_routes(NOBODY), *client_routes(NOBODY), *remedy_routes(NOBODY),
    *remedy_command_routes(NOBODY), *client_command_routes(NOBODY), *leak_routes(NOBODY), *leak_command_routes(NOBODY),
    *usage_routes(NOBODY),
)  # fmt: skip


def served(extra: tuple[BaseRoute, ...], *, control: bool) -> set[tuple[str, str]]:
    """Method and path of every route of an app."""
    app = build_app(FakeSource(), control=control, extra_routes=extra)
    routes = [route for route in app.routes if isinstance(route, Route)]
    return {(method, plain_route(route.path)) for route in routes for method in (route.methods or set()) - {"HEAD"}}


@pytest.mark.parametrize("control", [False, True], ids=["tcp", "control socket"])
def test_every_route_is_described_and_nothing_else(control: bool) -> None:
    """At both doors; what is for the control socket alone is marked so, and is not served by the other."""
    described = {(each.method, each.route_path) for each in OPERATIONS if control or not each.control_only}
    assert served(COMMANDS if control else READ, control=control) == described


def test_a_wrong_method_names_the_right_ones() -> None:
    """RFC 9110 asks for all of them in `Allow`, also where one path takes several."""
    methods: dict[str, set[str]] = {}
    for each in OPERATIONS:
        path = re.sub(r"\{.*?\}", "1", each.path)
        methods.setdefault(path, set()).update({each.method} | ({"HEAD"} if each.method == "GET" else set()))

    async def test() -> dict[str, set[str]]:
        async with serving(build_app(FakeSource(), extra_routes=COMMANDS)) as server:
            answers = {path: await ask(server, path, "PATCH") for path in methods}
        assert {answer.status for answer in answers.values()} == {405}
        return {path: set(answer.headers["allow"].split(", ")) for path, answer in answers.items()}

    assert run(test()) == methods


def test_the_document_is_openapi() -> None:
    """Its references lead somewhere, its names are unique, and each schema is one."""
    whole = openapi.document()
    text = json.dumps(whole)
    names = [each.name for each in OPERATIONS]
    assert len(names) == len(set(names))
    assert {f'#/components/schemas/{name}"' in text for name in SCHEMAS} == {True}
    for name in SCHEMAS:
        jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": whole["components"]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "made"), [("openapi.json", openapi.render), ("api.md", reference.render)], ids=["openapi.json", "api.md"]
)
def test_files_are_current(name: str, made: Any) -> None:
    """`python -m gpuagent_exporters.api.openapi` and `.reference` make them."""
    assert (DOCS / name).read_text() == made(), f"write it anew: python -m {made.__module__} > docs/{name}"


def test_it_is_served() -> None:
    """The very document, as JSON."""

    async def test() -> Answer:
        async with serving(build_app(FakeSource())) as server:
            return await ask(server, "/api/v1/openapi.json")

    got = run(test())
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.json() == openapi.document()


@pytest.mark.slow
@settings(max_examples=50)
@given(snapshot=snapshots())
def test_what_was_measured_keeps_to_it(snapshot: Snapshot) -> None:
    """Whatever a snapshot holds: no key is missing, none is unknown, and every value is of its type."""
    history = History()
    history.add(snapshot)
    made: Mapping[str, Mapping[str, Any]] = {
        "Status": status_document(
            snapshot, now_seconds=snapshot.clock_seconds + 1, version="1", pid=1, uptime_seconds=1.0,
            poll_interval_seconds=1.0, history=history.points(), history_interval_seconds=10.0,
        ),
        "Processes": processes_document(snapshot, now_seconds=snapshot.clock_seconds),
        "History": history.document(),
    }  # fmt: skip
    assert {name: faults_of(name, content) for name, content in made.items()} == {name: [] for name in made}


def test_nothing_measured_keeps_to_it_too() -> None:
    """Before the first tick."""
    empty = status_document(
        None, now_seconds=0.0, version="1", pid=1, uptime_seconds=None, poll_interval_seconds=1.0, history={},
        history_interval_seconds=10.0,
    )  # fmt: skip
    assert faults_of("Status", empty) == []
    assert faults_of("Processes", processes_document(None, now_seconds=0.0)) == []
    assert faults_of("History", History().document()) == []


def test_a_document_that_does_not_keep_to_it_is_noticed() -> None:
    """A missing key, a further one and a wrong type are faults of their own."""
    good = processes_document(None, now_seconds=0.0)
    assert len(faults_of("Processes", good | {"stale": 0})) == 1
    assert len(faults_of("Processes", good | {"further": 0})) == 1
    assert len(faults_of("Processes", {key: good[key] for key in good if key != "stale"})) == 1


def test_what_apps_have_found_keeps_to_it() -> None:
    """A group, a line and what could not be found out."""
    found = Findings("it leaks", (HolderGroup("a"),), (Line("app.py", line=42),), ("no census",), 0.1).document()
    assert faults_of("Findings", {"pid": 1, "window_seconds": 60.0, **found}) == []
    assert found["groups"]
    assert found["lines"]


def test_what_is_hidden_may_be_missing() -> None:
    """Keys that an address without a password does not tell are described as such."""
    schema = SCHEMAS["Remedy"]
    row, end = schema["properties"]["steps"]["items"], schema["properties"]["end"]
    for one, told in (
        (schema, remedy_routes_module._TOLD_RUN | {"steps", "end"}),
        (row, remedy_routes_module._TOLD_STEP),
        (end, remedy_routes_module._TOLD_END),
    ):
        assert set(one["required"]) <= told <= set(one["properties"])


def words(path: str) -> list[str]:
    """Return the words of an enumeration, given where it is: `Gpu.verdict`, `DeadLetters.dead[].status`."""
    name, *keys = path.split(".")
    schema = SCHEMAS[name]
    for key in keys:
        schema = schema["properties"][key.removesuffix("[]")]
        schema = schema["items"] if key.endswith("[]") else schema
    return [word for word in schema["enum"] if word is not None]


@pytest.mark.parametrize(
    ("path", "of_the_code"),
    [
        ("Node.nvml_state", NvmlState), ("Problem.severity", Severity), ("Gpu.state", GpuState),
        *((f"{name}.{key}", kind) for name in ("Gpu", "MigInstance", "Process") for key, kind in GROWTH.items()),
        ("Process.state", ProcessState), ("Remedy.end.result", RunResult), ("Remedied.result", RunResult),
        ("Silence.state", SilenceState), ("DeadLetters.dead[].status", Status),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_words_are_those_of_the_code(path: str, of_the_code: Iterable[str]) -> None:
    """The description is written by hand: what it enumerates is what there is."""
    assert set(words(path)) == set(of_the_code)


def test_numbers_are_those_of_the_code() -> None:
    """Versions of documents, files of the page and lines of a history are the code's too."""
    versions = {name: schema["properties"]["schema"]["const"] for name, schema in SCHEMAS.items()
                if "schema" in schema.get("properties", {})}  # fmt: skip
    assert set(versions.values()) == {SCHEMA}
    parameters = {
        (path, each["name"]): each["schema"]
        for path, methods in openapi.document()["paths"].items()
        for content in methods.values()
        for each in content.get("parameters", ())
    }
    top = parameters["/api/v1/history", "top"]
    assert (top["maximum"], top["default"]) == (MOST, TOP)
    assert parameters["/assets/{name}", "name"]["enum"] == sorted(ASSETS)

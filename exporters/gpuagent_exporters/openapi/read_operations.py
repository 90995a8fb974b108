"""What everybody may read, at either door."""

from __future__ import annotations

from gpuagent_exporters.api.history_routes import MOST, TOP
from gpuagent_exporters.openapi.operation import (
    JSON,
    TEXT,
    Answer,
    Operation,
    Parameter,
    fault,
    in_path,
    json_of,
    plain,
)
from gpuagent_exporters.openapi.schema import integer, text
from gpuagent_exporters.page_assets import ASSETS

_STRING = {"type": "string"}

READ_OPERATIONS = (
    Operation(
        "Measurements", "GET", "/api/v1/status", "getStatus", "The node, its problems, GPUs and processes",
        {200: json_of("Status", "At one moment.")},
        "What `gpuagent status --json` prints.",
    ),
    Operation(
        "Measurements", "GET", "/api/v1/processes", "getProcesses", "The GPU processes alone",
        {200: json_of("Processes", "At one moment.")},
        "What `gpuagent ps --json` prints.",
    ),
    Operation(
        "Measurements", "GET", "/api/v1/history", "getHistory", "The last hour in slots of ten seconds",
        {200: json_of("History", "All of it, or what is new."), 400: fault("A parameter is none.")},
        "Ask once without `since`, then with the `cursor` of the last answer. It names processes, never users or "
        "commands.",
        (
            Parameter("since", text(pattern="^([0-9]{1,20}-[0-9]{1,19})?$"), "The cursor of an earlier answer."),
            Parameter("top", integer(minimum=0, maximum=MOST, default=TOP), "Lines for so many processes of each GPU."),
        ),
    ),
    Operation(
        "Measurements", "GET", "/metrics", "getMetrics", "The same for Prometheus",
        {200: Answer("As text, or as OpenMetrics where `Accept` prefers that.", {
            "text/plain; version=0.0.4; charset=utf-8": _STRING,
            "application/openmetrics-text; version=1.0.0; charset=utf-8": _STRING,
        })},
        "Every metric is in docs/metrics.md.",
    ),
    Operation(
        "Alerts", "GET", "/api/v1/alerts", "getAlerts", "What is pending and firing, who is told, silences",
        {200: json_of("Alerts", "At one moment."), 503: fault("The store cannot be read.")},
    ),
    Operation(
        "Remedies", "GET", "/api/v1/remedies", "getRemedies", "What was done to give memory back, and what was refused",
        {200: json_of("Remedies", "The newest."), 503: fault("The record cannot be read.")},
    ),
    Operation(
        "Apps", "GET", "/api/v1/clients", "getClients", "The apps with the embedded client, and their allocators",
        {200: json_of("Clients", "At one moment.")},
    ),
    Operation(
        "Agent", "GET", "/-/healthy", "getHealthy", "Whether the agent does its work",
        {200: plain("It does. A broken GPU is no reason to say otherwise."), 503: plain("Why not.")},
        "For the liveness probe of a supervisor.",
    ),
    Operation(
        "Agent", "GET", "/-/ready", "getReady", "Whether there is a fresh measurement",
        {200: plain("There is."), 503: plain("Why not.")},
        "For a readiness probe: never restart the agent because of it.",
    ),
    Operation(
        "Agent", "GET", "/api/v1/openapi.json", "getOpenapi", "This description",
        {200: Answer("OpenAPI 3.1.", {JSON: {"type": "object"}})},
    ),
    Operation(
        "Page", "GET", "/", "getPage", "The page for people",
        {200: Answer("HTML that works without a script.", {"text/html": _STRING})},
    ),
    Operation(
        "Page", "GET", "/assets/{name}", "getAsset", "A file that the page loads",
        {
            200: Answer("The file.", dict.fromkeys(("text/css", "text/javascript", "image/svg+xml", TEXT), _STRING)),
            304: Answer("It is what `If-None-Match` names."),
            404: fault("There is no such file."),
        },
        parameters=(in_path("name", text(enum=sorted(ASSETS)), "Of the file.", "page.css"),),
    ),
)  # fmt: skip

"""The page for a person with a browser: what the API tells, as HTML that needs no script.

The script only adds: it asks for this page again and puts what changed in its place (`assets/page.js`), and tells the
figures under the cursor (`assets/hover.js`). So there is one place that writes HTML and draws. Everything in it may
come from a hostile process name: every value goes through `page.html`, and the Content-Security-Policy forbids whatever
would slip through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuagent_exporters.charts import Chart
from gpuagent_exporters.page.alerts import alerts, going_on, pending, unread
from gpuagent_exporters.page.gpus import gpus, growing_keys
from gpuagent_exporters.page.headline import Headline, headline_of
from gpuagent_exporters.page.html import SEVERITIES, UNKNOWN, Document, chapter, duration, escape, text
from gpuagent_exporters.page.html import advice as as_advice
from gpuagent_exporters.page.leaks import leak_pictures, to_explain
from gpuagent_exporters.page.processes import processes
from gpuagent_exporters.page.remedies import remedies
from gpuagent_exporters.page.view import PageQuery, range_picker, view_of
from gpuagent_exporters.status.problems import stale_after_seconds

__all__ = ["CONTENT_SECURITY_POLICY", "REFRESH_SECONDS", "PageData", "growing_keys", "render", "to_explain", "view_of"]

REFRESH_SECONDS = 5
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@dataclass(frozen=True, slots=True)
class PageData:
    """What the address that the page is read from tells: documents of its API, by what they are about."""

    status: Document
    alerts: Document | None = None
    """None where the address has no such document; `{"message": ...}` where it could not be read."""
    remedies: Document | None = None
    hidden: bool = False
    """Users and commands are not for whoever asks."""
    chart: Chart = field(default_factory=Chart)
    leaks: Sequence[Document] = ()
    """Evidence of leaks, as `gpuagent leaks explain` has it."""


def render(told: PageData, hostname: str = "", view: PageQuery | None = None) -> bytes:
    """Render the page as UTF-8. What is not known shows as a dash, what could not be read says so."""
    status, view = told.status, view or PageQuery()
    title = escape(" · ".join(filter(None, ["gpuagent", hostname])))
    headline = headline_of(status)
    parts = [
        "<!doctype html>",
        f'<html lang="en" data-refresh-seconds="{REFRESH_SECONDS}"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></noscript>',
        f"<title>{title}</title>",
        '<link rel="icon" href="assets/icon.svg">',
        '<link rel="stylesheet" href="assets/page.css">',
        '<script type="module" src="assets/page.js"></script>',
        f'</head><body><header><div class="bar-row"><h1>{title}</h1>{_age(status)}',
        '<div id="live" data-keep></div></div>',
        '<div id="lost" data-keep></div></header><main>',
        f'<div id="banners"{_old_mark(status)}>{"".join(_banners(status))}</div>',
        _headline(headline),
        _navigation(told),
        gpus(
            status,
            _stale_seconds(status),
            told.chart,
            range_picker(view, told.chart.known_seconds),
        ),
        leak_pictures(told.leaks, status),
        f'<div class="columns">{_problems(status.get("problems") or ())}{_alerts(told)}</div>',
        processes(
            status.get("processes") or (),
            hidden=told.hidden,
            known=status.get("last_known"),
            view=view,
            colors=told.chart.colors,
        ),
        _remedies(told),
        "</main><footer><p>",
        f"{text(_node_facts(status))} · refreshes every {REFRESH_SECONDS} s. The same for programs: ",
        '<a href="metrics">/metrics</a>, <a href="api/v1/status">/api/v1/status</a>.',
        "</p></footer></body></html>\n",
    ]
    return "".join(parts).encode("utf-8", errors="replace")


def _headline(headline: Headline) -> str:
    advice = f'<p class="quiet">{as_advice(headline.advice)}</p>' if headline.advice else ""
    others = ""
    if headline.others:
        word = "problem" if headline.others == 1 else "problems"
        more = "more " if headline.severity in SEVERITIES[:2] else ""
        others = f' <a class="further" href="#problems">{headline.others} {more}{word}</a>'
    return (
        f'<section id="headline" class="{headline.severity}" aria-label="The node in one sentence">'
        f'<p class="sentence">{text(headline.text)}{others}</p>{advice}</section>'
    )


def _age(status: Document) -> str:
    # The script hides the age as soon as nobody keeps it up to date.
    return f'<span id="age" class="quiet">data is {duration(status.get("age_seconds"))} old</span>'


def _node_facts(status: Document) -> str:
    node, agent = status.get("node") or {}, status.get("agent") or {}
    return " · ".join([
        f"driver {node.get('driver_version') or UNKNOWN}",
        f"CUDA {node.get('cuda_version') or UNKNOWN}",
        f"gpuagent {agent.get('version') or UNKNOWN}, up {duration(agent.get('uptime_seconds'))}",
    ])  # fmt: skip


def _navigation(told: PageData) -> str:
    """Render links to the chapters with how much there is in each: on a phone they are far apart."""
    status = told.status
    counts: list[tuple[str, str, object]] = [
        ("gpus", "GPUs", len(status.get("gpus") or ())),
        ("problems", "Problems", len(status.get("problems") or ())),
        ("alerts", "Incidents", _incident_count(told.alerts or {})),
        ("processes", "Processes", len(status.get("processes") or ())),
        ("remedies", "Remedies", len((told.remedies or {}).get("remedies") or ())),
    ]
    absent = {name for name, document in (("alerts", told.alerts), ("remedies", told.remedies)) if document is None}
    links = "".join(
        f'<li><a href="#{name}">{title} <span class="count">{many}</span></a></li>'
        for name, title, many in counts
        if name not in absent
    )
    return f'<nav aria-label="On this page"><ul>{links}</ul></nav>'


def _incident_count(document: Document) -> str:
    """Count what is listed under that heading: incidents that go on, and alerts that may come to fire."""
    waiting, many = pending(document), going_on(document)
    return f"{many} firing, {waiting} pending" if waiting else str(many)


def _stale_seconds(status: Document) -> float:
    return stale_after_seconds((status.get("agent") or {}).get("poll_interval_seconds") or 1.0)


def _old_mark(status: Document) -> str:
    """Return the attribute by which the script knows that these figures are not live."""
    age = status.get("age_seconds")
    return " data-old" if age is None or age > _stale_seconds(status) else ""


def _banners(status: Document) -> Iterable[str]:
    agent, age = status.get("agent") or {}, status.get("age_seconds")
    if agent.get("simulated"):
        scenario = text(agent["simulated"])
        yield f'<p class="banner">SIMULATED: no real GPU is shown here (scenario {scenario}).</p>'
    if age is None:
        yield '<p class="banner">NO DATA: nothing has been measured yet.</p>'
    elif age > _stale_seconds(status) and not any(one.get("kind") == "stale" for one in status.get("problems") or ()):
        yield f'<p class="banner">STALE: the last measurement is {text(duration(age))} old; it may no longer be so.</p>'


def _problems(problems: Sequence[Document]) -> str:
    items = f'<ul class="list">{"".join(map(_problem, problems))}</ul>' if problems else "<p>None known.</p>"
    return chapter("problems", "Problems", f'<div aria-live="polite">{items}</div>')


def _problem(problem: Document) -> str:
    severity = problem.get("severity")
    kind = severity if severity in SEVERITIES else "info"
    advice = problem.get("advice")
    return (
        f'<li class="{kind}"><b>{kind.upper()}</b> {text(problem.get("text"))}'
        + (f'<br><span class="quiet">{as_advice(advice)}</span>' if advice else "")
        + "</li>"
    )


def _alerts(told: PageData) -> str:
    if told.alerts is None:
        return ""
    if "message" in told.alerts:
        return unread("alerts", "Incidents", str(told.alerts["message"]))
    return alerts(told.alerts, hidden=told.hidden, acts=told.remedies)


def _remedies(told: PageData) -> str:
    if told.remedies is None:
        return ""
    if "message" in told.remedies:
        return unread("remedies", "Remedies", str(told.remedies["message"]))
    now = (told.alerts or {}).get("time_seconds") or told.status.get("time_seconds")
    return remedies(told.remedies, now, hidden=told.hidden)

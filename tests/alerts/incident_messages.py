"""Incidents for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuagent_alerts.alert import Alert, Briefing, CauseKind, Holder, Incident, Message, News
from tests.alerts.messages import NOW, alert, message

KEY = "inc-0123456789ab"
LINKS = {
    "page": "http://node7:9837/",
    "grafana": "https://grafana.example.org/d/gpu?var-node=node7&var-gpu=0",
    "runbook": "https://example.org/runbooks/GpuProcessMemoryLeak",
}
BRIEFING = Briefing(
    headline="CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min",
    numbers="process holds 44.1 GiB · 60.0 GiB of 80.0 GiB in use (75 %) · +84.4 GiB/h",
    holders=(Holder(81204, "whisper-api", "svc-ml", 47_352_014_438), Holder(7, "python3", "ann", 9 * 2**30)),
    culprit="server.py:41 holds 43.0 GiB in `cache`",
    remedies=("SIGTERM: dry run, nothing was done",),
    next_command="gpuagent blame 81204",
    links=LINKS,
    silence_command="gpuagent silence add --incident inc-0123456789ab --for 2h",
)
ENDED = Briefing(
    headline="RESOLVED node7 GPU 0: whisper-api (svc-ml, pid 81204) was leaking memory: the process ended; 44.1 GiB "
    "came back",
    numbers="16.0 GiB of 80.0 GiB in use (20 %)",
    links=LINKS,
    end_reason="the process ended; 44.1 GiB came back",
)


def incident(
    news: News = News.BEGAN, *, severity: str = "critical", briefing: Briefing | None = None, key: str = KEY,
    labels: Mapping[str, str] | None = None,
) -> Incident:  # fmt: skip
    """A leaking process, at some point of its story."""
    over = news is News.ENDED
    return Incident(
        key, CauseKind.PROCESS, labels or {"gpu": "0", "uuid": "GPU-1", "pid": "81204"}, severity, NOW - 600,
        NOW - 10 if over else None, news, briefing or (ENDED if over else BRIEFING),
    )  # fmt: skip


def about(told: Incident, *alerts: Alert) -> Message:
    """A message about it."""
    given = alerts or (alert("GpuProcessMemoryLeak", ended=told.is_over, uuid="GPU-1", pid="81204"),)
    return replace(message(*given, group=told.key, name=f"gpa_{told.news}"), incident=told)

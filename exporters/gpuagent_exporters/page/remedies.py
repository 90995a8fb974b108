"""Remedies on the page: what was done to free memory, and what came of it."""

from __future__ import annotations

from gpuagent_exporters.page.html import Document, ago, attribute, chapter, count, duration, size, text

_MOST_REMEDIES = 20


def remedies(document: Document, now: object, *, hidden: bool) -> str:
    """Render what was done to free memory, the newest first. `now` is the agent's Unix time."""
    runs = list(document.get("remedies") or ())[::-1]
    body = ""
    if document.get("stopped"):
        body += f'<p class="banner">STOPPED: {text(document["stopped"])}</p>'
    if document.get("off"):
        body += f'<p class="banner">OFF: {text(document["off"])}</p>'
    if document.get("dry_run"):
        body += '<p class="quiet">Dry run: remedies say what they would do, and do nothing.</p>'
    items = "".join(_remedy(run, now, hidden=hidden) for run in runs[:_MOST_REMEDIES])
    body += f'<ul class="list">{items}</ul>' if items else f"<p>{_nothing_done(document)}</p>"
    if len(runs) > _MOST_REMEDIES:
        body += f'<p class="quiet">{len(runs) - _MOST_REMEDIES} more in /api/v1/remedies</p>'
    return chapter("remedies", "Remedies", body)


def _nothing_done(document: Document) -> str:
    """Say that nothing was done; what is refused or withheld now is no run, and no reason to say that nothing was."""
    withheld = len(document.get("withheld") or ())
    if not withheld:
        return "Nothing was done, and nothing was refused."
    return f"Nothing was done; {count(withheld, 'alert')} with a remedy {'fires' if withheld == 1 else 'fire'}."


def _remedy(run: Document, now: object, *, hidden: bool) -> str:
    end = run.get("end")
    who = f"{run.get('name') or 'a process'} (pid {run.get('pid')}) on GPU {run.get('gpu')}"
    why = run.get("alertname") or "asked for"
    if not run.get("alertname") and not hidden:
        why = f"asked for by {run.get('asked_by') or 'somebody'}"
    if end is None:
        result, told = "under way", ""
    else:
        result = str(end.get("result") or "unknown").replace("_", " ")
        freed, took = end.get("released_bytes"), end.get("seconds")
        parts = (
            f"{size(freed)} came back" if freed is not None else "",
            f"in {duration(took)}" if took is not None else "",
            "" if hidden else str(end.get("detail") or ""),
        )
        told = " · ".join(filter(None, parts))
    dry = " (dry run)" if run.get("dry_run") else ""
    line = f"{who}, {size(run.get('used_bytes'))}: {why} · {ago(run.get('time_seconds'), now)}"
    return (
        f'<li class="calm" data-key="{attribute(run.get("id"))}"><b>{text(result.upper() + dry)}</b> {text(line)}'
        + (f'<br><span class="quiet">{text(told)}</span>' if told else "")
        + "</li>"
    )

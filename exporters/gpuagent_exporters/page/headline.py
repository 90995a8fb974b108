"""The node in one sentence: what is gravest, or that all is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuagent.core.units import format_bytes, format_duration, format_ratio
from gpuagent.core.wording import pace_words
from gpuagent_exporters.page.html import SEVERITIES, Document, count, is_number

_GROWTH_KINDS = frozenset({"leak", "growth", "fast_growth", "unowned_leak"})
_LEAK_KINDS = frozenset({"leak", "unowned_leak"})
_FULL_KIND = "memory_full"
_SHORT = 160
"""Characters of a sentence; what is longer is told where it belongs."""


class Headline(NamedTuple):
    """The sentence, without markup."""

    severity: str
    """One of `SEVERITIES`, or "ok"."""
    text: str
    advice: str = ""
    others: int = 0
    """Further problems."""


def headline_of(status: Document) -> Headline:
    """Return the sentence. Nothing is said to be well that was not measured."""
    problems = sorted(status.get("problems") or (), key=lambda one: severity_rank(one.get("severity")))
    grave = [one for one in problems if one.get("severity") in SEVERITIES[:2]]
    others = max(0, len(problems) - 1)
    if grave:
        first = grave[0]
        same = [one for one in grave if severity_rank(one.get("severity")) == severity_rank(first.get("severity"))]
        soonest = min(same, key=lambda one: _seconds_left(one, status))
        chosen = soonest if _seconds_left(soonest, status) < float("inf") and _is_growth(first) else first
        is_full = first.get("kind") == _FULL_KIND and first.get("severity") == SEVERITIES[0]
        if is_full and (cause := _cause(first, grave)) is not None:
            chosen = cause
        sentence = _sentence(chosen, status, is_full=is_full)
        return Headline(str(first["severity"]), sentence, str(chosen.get("advice") or ""), others)
    away = [gpu for gpu in status.get("gpus") or () if gpu.get("state") not in {"ok", "asleep"}]
    if away:
        why = f": {away[0]['reason']}" if away[0].get("reason") else ""
        lost = f"GPU {away[0].get('index')} is {away[0].get('state') or 'not read'}{why}"
        return Headline("critical", _shortened(lost), "", len(problems))
    if status.get("age_seconds") is None:
        reason = str((status.get("node") or {}).get("nvml_reason") or "")
        return Headline(
            "warning", "Nothing has been measured yet" + (f": {reason}." if reason else "."), "", len(problems)
        )
    if not status.get("gpus"):
        return Headline("warning", "There is no GPU on this node.", "", len(problems))
    growing = _first_growing(status)
    return Headline("info" if problems or growing else "ok", growing or _all_well(status), "", len(problems))


def severity_rank(severity: object) -> int:
    """Return 0 for the gravest."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _cause(full: Document, grave: Sequence[Document]) -> Document | None:
    """Return the leak that has filled a GPU: it says who is to be ended, and not only that there is no room."""
    if full.get("gpu_instance_id") is not None:
        return None
    leaks = (one for one in grave if one.get("kind") in _LEAK_KINDS and one.get("gpu") == full.get("gpu"))
    return next(leaks, None)


def _is_growth(problem: Document) -> bool:
    return problem.get("kind") in _GROWTH_KINDS


def _seconds_left(problem: Document, status: Document) -> float:
    gpu = _gpu(problem, status) if _is_growth(problem) else None
    left = None if gpu is None else gpu.get("exhaustion_seconds")
    return float(left) if is_number(left) else float("inf")


def _gpu(problem: Document, status: Document) -> Document | None:
    if problem.get("gpu") is None:
        return None
    return next((gpu for gpu in status.get("gpus") or () if gpu.get("index") == problem["gpu"]), None)


def _sentence(problem: Document, status: Document, *, is_full: bool = False) -> str:
    gpu = _gpu(problem, status)
    growing = _growing(problem, gpu, status, is_full=is_full) if gpu is not None and _is_growth(problem) else ""
    return growing or _capitalized(_shortened(str(problem.get("text") or "")))


def _capitalized(sentence: str) -> str:
    """Begin with a capital letter, unless the first word may be a name."""
    first = sentence.partition(" ")[0]
    return sentence[:1].upper() + sentence[1:] if first.isalpha() and first.islower() else sentence


def _growing(problem: Document, gpu: Document, status: Document, *, is_full: bool) -> str:
    """Say when the GPU is full, and who fills it; empty where a figure for that is missing."""
    process = next(
        (
            one
            for one in status.get("processes") or ()
            if one.get("gpu") == gpu.get("index") and one.get("pid") == problem.get("pid") is not None
        ),
        None,
    )
    part = gpu if process is None else process
    pace, left = pace_words(part), gpu.get("exhaustion_seconds")
    who = "its memory grows by" if process is None else f"{_name(process)} {_verb(process)}"
    does = f"{who} {pace}" if pace else ""
    place = f"GPU {gpu.get('index')}"
    if is_full or (is_number(left) and left < 1):
        return f"{place} is full" + (f": {does}." if does else ".")
    if is_number(left):
        return f"{place} will be full in {format_duration(left)}" + (f": {does}." if does else ".")
    return (
        f"{does[:1].upper()}{does[1:]} on {place}."
        if does and process is None
        else f"{does} on {place}."
        if does
        else ""
    )


_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
"""Characters that turn the text around them: a process can have them in its name."""


def _name(process: Document) -> str:
    """Return the name of a process, isolated: the sentence goes on behind it."""
    name = str(process.get("process") or "").translate(_DIRECTIONS)
    return f"\N{FIRST STRONG ISOLATE}{name}\N{POP DIRECTIONAL ISOLATE}" if name else f"pid {process.get('pid')}"


def _verb(process: Document) -> str:
    verb = {"leaking": ("leaks", "leaked"), "growing": ("grows by", "grew by")}
    now, then = verb.get(str(process.get("verdict")), ("grows by", "grew by"))
    return then if str(process.get("growth_state") or "").startswith("stopped") else now


def _shortened(sentence: str) -> str:
    """Return the first part of a long sentence: the whole is told among the problems."""
    if len(sentence) > _SHORT:
        for mark in (": ", "; ", ". "):
            head, found, _ = sentence[:_SHORT].rpartition(mark)
            if found and len(head) > _SHORT // 3:
                sentence = head
                break
        else:
            sentence = f"{sentence[: _SHORT - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return sentence if sentence.endswith((".", "\N{HORIZONTAL ELLIPSIS}")) else f"{sentence}."


def _first_growing(status: Document) -> str:
    """Say which GPU fills up, where nothing proves a problem yet; empty where none does."""
    growing = [gpu for gpu in status.get("gpus") or () if gpu.get("verdict") == "growing" and pace_words(gpu)]
    if not growing:
        return ""
    gpu = min(growing, key=lambda one: one.get("exhaustion_seconds") or float("inf"))
    return f"No problem yet: the memory of GPU {gpu.get('index')} grows by {pace_words(gpu)}."


def _all_well(status: Document) -> str:
    gpus: Sequence[Document] = status.get("gpus") or ()
    read = [gpu for gpu in gpus if is_number(gpu.get("memory_used_bytes")) and is_number(gpu.get("memory_total_bytes"))]
    whole = "The GPU is" if len(gpus) == 1 else f"All {len(gpus)} GPUs are"
    asleep = sum(gpu.get("state") == "asleep" for gpu in gpus)
    parts = [f"{whole} healthy" + (f", {asleep} asleep" if asleep else "")]
    total = sum(gpu["memory_total_bytes"] for gpu in read)
    if total:
        used = sum(gpu["memory_used_bytes"] for gpu in read)
        parts.append(f"{format_bytes(used)} of {format_bytes(total)} used ({format_ratio(used / total)})")
    parts.append(count(len({one.get("pid") for one in status.get("processes") or ()}), "process"))
    return f"{parts[0]}: {', '.join(parts[1:])}."

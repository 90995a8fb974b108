"""A filter of processes as a person types it, the same on every screen: over processes of the status document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuagent.core.identity import format_container

Document = Mapping[str, Any]


def owner(process: Document) -> str:
    """Return what the process belongs to: the name under which somebody can be asked, or something be restarted.

    >>> owner({"unit": "vllm.service"}), owner({"slurm_job": "7", "unit": "x.scope"}), owner({})
    ('vllm.service', 'job 7', '')
    """
    if process.get("slurm_job"):
        return f"job {process['slurm_job']}"
    if process.get("pod"):
        return f"{process.get('namespace')}/{process['pod']}"
    if process.get("pod_uid"):
        return f"pod {str(process['pod_uid'])[:8]}"
    if process.get("unit"):
        return str(process["unit"])
    if process.get("container_id"):
        named = process.get("container_name") or format_container(str(process["container_id"]))
        return f"{process.get('container_runtime') or 'container'} {named}"
    return ""


def container_of(process: Document) -> str:
    """Return the name of its container or pod; "" outside of any.

    >>> container_of({"pod": "whisper-0", "namespace": "speech"}), container_of({})
    ('speech/whisper-0', '')
    """
    if process.get("pod"):
        return f"{process.get('namespace')}/{process['pod']}"
    if process.get("container_id"):
        return str(process.get("container_name") or format_container(str(process["container_id"])))
    return ""


FIELDS: Mapping[str, Callable[[Document], str]] = {
    "gpu": lambda process: str(process.get("gpu")),
    "pid": lambda process: str(process.get("pid")),
    "user": lambda process: str(process.get("user") or ""),
    "unit": lambda process: str(process.get("unit") or ""),
    "job": lambda process: str(process.get("slurm_job") or ""),
    "container": container_of,
    "verdict": lambda process: str(process.get("verdict") or ""),
    "name": lambda process: str(process.get("process") or ""),
}
"""What a word of a filter can name, as `user:alice`."""
_EXACT = frozenset({"gpu", "pid", "job"})


def matches(process: Document, text: str) -> bool:
    """Return whether a process has every word of a filter: `user:alice` in this field, `train` anywhere.

    >>> one = {"gpu": 0, "pid": 7, "user": "alice", "command": "train.py", "process": "python3"}
    >>> matches(one, "user:ali TRAIN"), matches(one, "gpu:1"), matches(one, "")
    (True, False, True)
    """
    return all(_matches_word(process, word) for word in text.lower().split())


def _matches_word(process: Document, word: str) -> bool:
    name, colon, wanted = word.partition(":")
    if colon and name in FIELDS:
        value = FIELDS[name](process).lower()
        return value == wanted if name in _EXACT and wanted else wanted in value
    texts = [read(process) for name, read in FIELDS.items() if name != "gpu"]
    texts += [str(process.get("command") or ""), owner(process)]
    return any(word in text.lower() for text in texts)

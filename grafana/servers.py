"""What model servers say of themselves, where `sources` names them."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from panels import GREEN, NODE, RED, Panel, counts, lines, query, states, words

EMPTY = "No model server is configured (`sources`), or no data"
LEGEND = "{{instance}} {{source}}"


def panels() -> Iterator[Panel]:
    """Yield whether they answer, what they work on, and what their memory is for."""
    yield states(
        "Model servers",
        "Whether each server answered when it was last asked.",
        words(("silent", RED), ("answers", GREEN)),
        query(f"gpuagent_source_up{{{NODE}}}", LEGEND),
        empty=EMPTY,
    )
    yield lines(
        "Key-value cache in use",
        "Share of its key-value cache that a server uses. The rest is idle, and not given back.",
        "percentunit",
        query(f"gpuagent_source_kv_cache_usage_ratio{{{NODE}}}", LEGEND),
        empty=EMPTY,
        most=1,
    )
    waiting = lines(
        "Requests of model servers",
        "Requests that a server works on, and those that wait.",
        "none",
        query(f"gpuagent_source_requests_running{{{NODE}}}", f"{LEGEND} running"),
        query(f"gpuagent_source_requests_waiting{{{NODE}}}", f"{LEGEND} waiting"),
        empty=EMPTY,
    )
    yield counts(waiting)
    yield lines(
        "Memory of model servers",
        "What a server says its memory is for: weights, cache, graphs, pinned memory of the host; and what each "
        "loaded model takes.",
        "bytes",
        query(f"gpuagent_source_memory_bytes{{{NODE}}}", f"{LEGEND} {{{{part}}}}"),
        query(f"gpuagent_source_model_memory_bytes{{{NODE}}}", f"{LEGEND} {{{{model}}}}"),
        empty=EMPTY,
    )

"""Records that fill up are counted and contexts of other threads asked, without code of the app and for no longer."""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import Any

import pytest

import gpuagent_client.blame.contexts as contexts_module
from gpuagent_client.blame.contexts import ContextReferences, find_contexts, position_of, uses_context_variables
from gpuagent_client.blame.filling import tensors_below
from gpuagent_client.blame.judgment import judge

SPAN: contextvars.ContextVar[list[int]] = contextvars.ContextVar("SPAN")


class TensorBase:
    """Stands in for torch's, by its name."""

    __module__ = "torch._C"


class Record:
    """A record whose attributes cannot be asked for."""

    vector: TensorBase | None

    def __init__(self) -> None:
        self.vector = None

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


def test_very_large_containers_are_left_out() -> None:
    """Neither a container of many elements, nor one among the elements, nor very many of them are gone through."""
    assert tensors_below([None] * 200_001, 2) is None
    assert tensors_below([[TensorBase()] * 10_001, [TensorBase()]], 3) == 1
    assert tensors_below([list(range(200)) for _ in range(2_000)], 3) is None


def test_tensors_are_counted_as_deep_as_asked() -> None:
    """An attribute of a record, an element of a list in it: each tensor once, and nothing of the app runs."""
    shared = TensorBase()
    records: list[Any] = [Record() for _ in range(5)]
    assert tensors_below(records, 2) == 0
    for one in records[:3]:
        one.vector = shared if one is records[0] else TensorBase()

    assert tensors_below(records, 2) == 3
    assert tensors_below(records, 1) == 0
    assert tensors_below({1: [shared], 2: [shared, TensorBase()]}, 2) == 2
    assert tensors_below(Record(), 2) is None


def test_a_large_container_is_sampled() -> None:
    """What is counted stands for all: every other of 40,000 elements."""
    assert tensors_below([TensorBase() for _ in range(40_000)], 1) == 40_000


def test_the_context_of_a_thread_is_asked_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that only another thread's context has is found, and is not kept alive."""
    monkeypatch.setattr(contexts_module, "MAX_OBJECTS", sys.maxsize)  # the process of the tests has very many
    began, ends = threading.Event(), threading.Event()

    def work() -> None:
        SPAN.set([1])
        began.set()
        ends.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(30)
    contexts = find_contexts()
    values = [one[SPAN] for one in contexts if SPAN in one]
    positions = [position_of(contexts, SPAN, value) for value in values]
    references = ContextReferences.to(contexts)
    assert uses_context_variables()
    assert [references.value(SPAN, one) for one in positions] == [[1]]
    assert references.value("no variable", positions[0]) is None

    ends.set()
    thread.join()
    del contexts[:]
    assert [references.value(SPAN, one) for one in positions] == [None]


def candidate(measure: str, value: int, gained: int) -> dict[str, object]:
    """A place where a holder may have grown."""
    return {
        "targets": [[["module", "app"], [], measure, value]], "gained": gained, "bound": None, "rooted": True,
        "device": "cpu", "container": f"app.{measure}", "container_length": value, "path": "", "cause": "",
    }  # fmt: skip


def judged(elements: list[int | None], length: list[int | None]) -> list[object]:
    """Names of what is blamed, where a container has a length and elements that may fill up."""
    alternatives = [candidate("length", 100, 10), candidate("below:2", 100, 20)]
    found = {"groups": [{"growth_bytes": 1 << 20, "alternatives": alternatives}], "freed_by_gc": True}
    answer = judge(found, {(0, 0): length, (0, 1): elements}, pace=1.0)
    return [group["container"] for group in answer.growing]


def test_elements_count_only_where_the_container_stays_as_long() -> None:
    """The length says more; and a few more tensors than before are no growth."""
    assert judged([110, 120], [100, 100]) == ["app.below:2"]
    assert judged([110, 120], [105, 110]) == ["app.length"]
    assert judged([101, 103], [100, 100]) == []
    assert judged([120, 100], [100, 100]) == []


def test_contexts_are_not_looked_for_among_very_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app of millions of objects is not held up for them."""
    monkeypatch.setattr(contexts_module, "MAX_OBJECTS", 10)
    assert find_contexts() == []

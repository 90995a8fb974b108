"""One model at a time, and the proof that the memory of the one before came back."""

from __future__ import annotations

import logging
import threading
import weakref

import pytest

from gpuagent_client.serving import Gate, ModelSlot, StillBusy
from tests.client.apps.faketorch import GIB
from tests.client.serving.bench import FakeProcess

kept: list[Model] = []
"""Where a forgotten reference stays."""


class Model:
    """Takes memory for as long as it lives; refers to itself, as modules do."""

    def __init__(self, process: FakeProcess, size: int = 2 * GIB) -> None:
        process.fake.allocate(size)
        weakref.finalize(self, process.fake.free, size)
        self.itself = self


def test_a_swap_brings_the_memory_back() -> None:
    """The old model is out before the new one is made: both at a time would not fit."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)
    first = slot.load("small", lambda: Model(process))
    at_loading: list[int] = []

    def make() -> Model:
        at_loading.append(process.fake.reserved[0])
        return Model(process, 5 * GIB)

    second = slot.load("large", make)

    assert (first.added_bytes, first.before.name) == (2 * GIB, "")
    assert at_loading == [0]
    assert second.before.complete
    assert (second.before.loaded_bytes, second.before.freed_bytes, second.before.released_bytes) == (2 * GIB,) * 3
    assert (slot.name, second.added_bytes) == ("large", 5 * GIB)


def test_what_is_in_is_not_loaded_again() -> None:
    """However many requests ask for it."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)
    made: list[int] = []

    def make() -> Model:
        made.append(1)
        return Model(process)

    threads = [threading.Thread(target=slot.load, args=("model", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [1]


@pytest.mark.slow
def test_who_still_holds_the_model_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """By the name that the code has for it."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)
    with caplog.at_level(logging.WARNING):
        slot.load("model", lambda: Model(process))
        with slot.use() as model:
            kept.append(model)
        del model
        returned = slot.unload()
        kept.clear()

    assert not returned.complete
    assert returned.freed_bytes == 0
    assert any(way.endswith("test_model_slot.kept[0]") for way in returned.held_by)
    assert "unloaded model: 0.00 GiB of 2.00 GiB came back; it is still held by" in caplog.text


@pytest.mark.slow
def test_a_variable_of_running_code_is_named() -> None:
    """The commonest reason of all: the caller has it in its hand."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)
    slot.load("model", lambda: Model(process))
    with slot.use() as mine:
        pass
    returned = slot.unload()

    assert mine.itself is mine
    assert any("mine" in way and "test_a_variable_of_running_code_is_named" in way for way in returned.held_by)


def test_memory_that_stays_without_a_holder_is_told() -> None:
    """Bytes are the proof, not references."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)

    def make() -> Model:
        process.fake.allocate(GIB)  # something that the model made elsewhere
        return Model(process)

    slot.load("model", make)
    returned = slot.unload()

    assert returned.held_by == ()
    assert (returned.loaded_bytes, returned.freed_bytes) == (3 * GIB, 2 * GIB)
    assert not returned.complete


def test_a_swap_waits_for_requests_in_the_gate() -> None:
    """And gives up in time: the model stays in."""
    process = FakeProcess()
    gate = Gate(2, state=process.state)
    slot: ModelSlot[Model] = ModelSlot(gate, patience_seconds=0.01, process=process)
    slot.load("model", lambda: Model(process))
    place = gate.try_acquire(lambda: None)

    with pytest.raises(StillBusy):
        slot.load("other", lambda: Model(process))
    assert slot.name == "model"
    gate.release(place)
    assert slot.load("other", lambda: Model(process)).before.name == "model"


def test_a_request_may_swap_for_itself() -> None:
    """It is in the gate, and must not wait for its own end."""
    process = FakeProcess()
    gate = Gate(1, state=process.state)
    slot: ModelSlot[Model] = ModelSlot(gate, patience_seconds=5, process=process)

    with gate:
        slot.load("model", lambda: Model(process))
        with slot.use():
            assert slot.name == "model"


def test_a_model_that_cannot_be_made_leaves_the_slot_empty() -> None:
    """The error is the maker's, and the next one can be loaded."""
    process = FakeProcess()
    slot: ModelSlot[Model] = ModelSlot(process=process)

    def broken() -> Model:
        raise MemoryError("CUDA out of memory")

    with pytest.raises(MemoryError):
        slot.load("model", broken)
    assert slot.name == ""
    with pytest.raises(LookupError, match="no model is loaded"), slot.use():
        raise AssertionError("there is one")
    slot.load("model", lambda: Model(process))

    assert slot.name == "model"


def test_an_empty_slot_has_nothing_to_unload() -> None:
    """It says so, and that is complete."""
    returned = ModelSlot[Model](process=FakeProcess()).unload()

    assert (returned.name, returned.complete) == ("", True)


def test_on_a_cpu_it_works_without_figures() -> None:
    """Only references can be proved there; CUDA is not touched."""
    process = FakeProcess()
    process.fake.up = False
    slot: ModelSlot[list[int]] = ModelSlot(process=process)
    slot.load("model", lambda: [1, 2, 3])
    returned = slot.unload()

    assert (returned.freed_bytes, returned.complete) == (None, True)
    assert process.fake.calls == []

"""The PCI Express link and its counters, which may wrap."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.driver.nvml.links import Unwrapped, collect_pcie
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Open

WRAP = 2**32
steps = st.lists(st.integers(0, WRAP - 1), max_size=50)


@given(start=st.integers(0, WRAP - 1), steps=steps)
def test_a_counter_of_32_bits_goes_on_through_its_wraps(start: int, steps: list[int]) -> None:
    """NUM-02: as long as it wraps at most once between two reads, no byte is missed or made up."""
    counter = Unwrapped()
    true = list(itertools.accumulate(steps, initial=start))

    assert [counter.update(value % WRAP) for value in true] == true


@given(start=st.integers(0, 2**63), steps=st.lists(st.integers(0, 2**50), max_size=50))
def test_a_wide_counter_is_taken_as_it_is(start: int, steps: list[int]) -> None:
    """A counter that never goes back is not changed."""
    counter = Unwrapped()
    true = list(itertools.accumulate(steps, initial=start))

    assert [counter.update(value) for value in true] == true


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64)), max_size=50))
def test_a_gap_is_a_gap(values: list[int | None]) -> None:
    """While there is no value there is none, whatever came before; the total never falls below zero."""
    counter = Unwrapped()

    for value in values:
        total = counter.update(value)
        assert (total is None) == (value is None)
        assert total is None or total >= 0


def test_a_wide_counter_that_starts_anew() -> None:
    """The driver was reloaded: the counter does too, as counters may."""
    counter = Unwrapped()

    assert [counter.update(value) for value in (2**40, 2**40 + 5, 7, 9)] == [2**40, 2**40 + 5, 7, 9]


def test_the_link(open_gpu: Open) -> None:
    """Generation, width, replays, and bytes that grow."""
    bench = open_gpu("""{model: h100, pcie: {generation: 4, width: 8, replays: 3,
                                             transmit: {shape: ramp, rate: 1000}, receive: {shape: ramp, rate: 10}}}""")
    first = collect_pcie(bench.device)
    bench.clock.advance(10)
    second = collect_pcie(bench.device)

    assert (first.generation, first.max_generation, first.width, first.max_width, first.replays) == (4, 5, 8, 16, 3)
    assert (second.transmit_bytes or 0) - (first.transmit_bytes or 0) == 10_000
    assert (second.receive_bytes or 0) - (first.receive_bytes or 0) == 100


def test_the_link_without_field_values(open_gpu: Open) -> None:
    """GPU-09: replays come by the older call, the byte counters are absent: no blocking call takes their place."""
    bench = open_gpu("{model: h100, pcie: {replays: 3}}")
    bench.fail(FaultKind.MISSING, calls=("nvmlDeviceGetFieldValues",))
    link = collect_pcie(bench.device)

    assert (link.replays, link.transmit_bytes, link.receive_bytes) == (3, None, None)

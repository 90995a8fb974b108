"""Links: PCI Express and its counters, which may wrap, NVLink, and C2C."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.driver.nvml.links import Unwrapped, collect_c2c, collect_nvlink, collect_pcie
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


def test_links_of_hopper(open_gpu: Open) -> None:
    """Bytes and errors are sums over the links, and one that is down has no share in the speed."""
    bench = open_gpu("""{model: h100, nvlink: {
        links: 3, inactive: [1], replay_errors: 2, crc_data_errors: 5,
        transmit: {shape: ramp, rate: 1024}, receive: {shape: ramp, rate: 2048}}}""")
    first = collect_nvlink(bench.device)
    bench.clock.advance(10)
    second = collect_nvlink(bench.device)

    assert first
    assert second
    assert [link.active for link in second.links] == [True, False, True]
    assert second.bytes_per_second == 2 * 26_562_000_000
    assert dict(second.errors) == {"replay": 4, "recovery": 0, "crc": 10}
    assert (second.transmit_bytes or 0) - (first.transmit_bytes or 0) == 2 * 10 * 1024
    assert (second.receive_bytes or 0) - (first.receive_bytes or 0) == 2 * 10 * 2048


def test_links_of_blackwell(open_gpu: Open) -> None:
    """GPU-09: fields 161 to 163 are not supported there; 202 to 215 take their place, and bytes are not KiB."""
    bench = open_gpu(
        "{model: b200, nvlink: {links: 2, version: 5, recovery_errors: 3, transmit: {shape: ramp, rate: 7}}}"
    )
    first = collect_nvlink(bench.device)
    bench.clock.advance(1)
    links = collect_nvlink(bench.device)

    assert first
    assert links
    assert (links.transmit_bytes or 0) - (first.transmit_bytes or 0) == 14
    assert dict(links.errors) == {"receive": 0, "local_link_integrity": 0, "link_recovery": 6}
    assert bench.device.failures == []


def test_errors_of_links_without_the_fields(open_gpu: Open) -> None:
    """GPU-09: before NVLink 4 there is a call for each counter."""
    bench = open_gpu("{model: a100, nvlink: {links: 2, crc_flit_errors: 1, crc_data_errors: 4}}")
    links = collect_nvlink(bench.device)

    assert links
    assert dict(links.errors) == {"replay": 0, "recovery": 0, "crc_flit": 2, "crc_data": 8}


def test_a_link_that_is_counted_anew(open_gpu: Open) -> None:
    """The sum goes on: a counter that falls would look like a burst to whoever takes its rate."""
    bench = open_gpu("{model: h100, nvlink: {links: 2, transmit: {shape: steps, points: [[0, 1MiB], [10, 1KiB]]}}}")
    first = collect_nvlink(bench.device)
    bench.clock.advance(10)
    second = collect_nvlink(bench.device)

    assert first
    assert second
    assert (first.transmit_bytes, second.transmit_bytes) == (2 * 2**20, 2 * 2**20 + 2 * 2**10)


def test_links_to_the_cpu(open_gpu: Open) -> None:
    """GH200 and GB200 have them, others have none."""
    bench = open_gpu("{model: h100, c2c: {links: 3, inactive: [2], replay_errors: 1}}")
    links = collect_c2c(bench.device)

    assert links
    assert [link.active for link in links.links] == [True, True, False]
    assert (links.bytes_per_second, links.transmit_bytes) == (2 * 44_712_000_000, None)
    assert dict(links.errors) == {"interrupt": 0, "replay": 3, "replay_back_to_back": 0}
    assert collect_c2c(open_gpu().device) is None


def test_a_gpu_without_nvlink(open_gpu: Open) -> None:
    """GPU-09: has no such figures, and no failure."""
    bench = open_gpu("{model: l40s}")

    assert collect_nvlink(bench.device) is None
    assert bench.device.failures == []

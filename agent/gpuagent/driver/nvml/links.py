"""Read the links of a GPU: PCI Express, NVLink and C2C (to the CPU), with speed, errors and bytes.

nvmlDeviceGetPcieThroughput is never called: it blocks for 20 ms per direction by design (nvml.h). The byte counters of
fields 197 and 198 cost one call and give an exact rate; where a GPU lacks them, GPM has the rate (see `profile`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuagent.core.hardware import Link, Links, Pcie
from gpuagent.driver.nvml.device import Field, NvmlDevice, count

_TRANSMIT_BYTES, _RECEIVE_BYTES, _REPLAYS = 197, 198, 94
_WRAP = 2**32


class Unwrapped:
    """A counter whose hardware register may be only 32 bits wide ("Value can be wrapped", nvml.h)."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._last = 0

    def update(self, value: int | None) -> int | None:
        """Return the counter without its wraps; None while there is no value."""
        if value is None:
            return None
        if self.total is None:
            self.total = value
        elif value >= self._last:
            self.total += value - self._last
        elif self._last < _WRAP:
            self.total += value + _WRAP - self._last
        else:  # wider than 32 bits and yet gone back: the driver was reloaded
            self.total = value
        self._last = value
        return self.total


class _Counters:
    def __init__(self) -> None:
        self.transmit = Unwrapped()
        self.receive = Unwrapped()


def collect_pcie(device: NvmlDevice) -> Pcie:
    """Read link state and counters."""
    fields = device.fields(_REPLAYS, _TRANSMIT_BYTES, _RECEIVE_BYTES)
    counters = device.state(_Counters)
    replays = fields.get(_REPLAYS)
    if replays is None:
        replays = device.ask("nvmlDeviceGetPcieReplayCounter")
    return Pcie(
        generation=count(device.ask("nvmlDeviceGetCurrPcieLinkGeneration")),
        max_generation=count(device.ask("nvmlDeviceGetMaxPcieLinkGeneration")),
        width=count(device.ask("nvmlDeviceGetCurrPcieLinkWidth")),
        max_width=count(device.ask("nvmlDeviceGetMaxPcieLinkWidth")),
        replays=count(replays),
        transmit_bytes=counters.transmit.update(count(fields.get(_TRANSMIT_BYTES))),
        receive_bytes=counters.receive.update(count(fields.get(_RECEIVE_BYTES))),
    )


_NVLINKS, _TRANSMIT_KIB, _RECEIVE_KIB, _NVLINK_SPEED = 91, 138, 139, 164
_TRANSMIT_BYTES_5, _RECEIVE_BYTES_5 = 202, 204
"""In place of 138 and 139 from NVLink 5 (Blackwell) on."""
_NVLINK_ERRORS = {
    161: "replay", 162: "recovery", 163: "crc",  # up to NVLink 4
    # From NVLink 5 on
    206: "malformed_packet", 207: "buffer_overrun", 208: "receive", 209: "receive_remote", 210: "receive_general",
    211: "local_link_integrity", 212: "transmit_discard", 214: "link_recovery_failed", 215: "link_recovery",
}  # fmt: skip
_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")
"""Counters by nvmlNvLinkErrorCounter_t: a call for each of each link, for drivers without the fields."""
_MAX_LINKS = 36
Errors = tuple[tuple[str, int], ...]
"""Errors by kind."""
C2C_LINKS, _C2C_ACTIVE, _C2C_SPEED = 170, 171, 172
_C2C_ERRORS = {231: "interrupt", 232: "replay", 233: "replay_back_to_back"}
_MEGABYTES = 10**6


class _Sums:
    """Counters over all links, each link by itself: one that is counted anew takes nothing from the sum."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}
        self._sums: dict[str, int] = {}

    def add(self, name: str, link: int, value: int | None) -> None:
        if value is None:
            return
        last = self._last.get((name, link), 0)
        self._sums[name] = self._sums.get(name, 0) + (value - last if value >= last else value)
        self._last[name, link] = value

    def of(self, name: str) -> int | None:
        return self._sums.get(name)

    def each(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, self._sums[name]) for name in names if name in self._sums)


class _NvLinkSums(_Sums):
    """Sums over all NVLinks."""


class _C2cSums(_Sums):
    """Sums over all C2C links."""


def collect_nvlink(device: NvmlDevice) -> Links | None:
    """Read every NVLink that the GPU has; None where it has none."""
    number = min(count(device.fields(_NVLINKS).get(_NVLINKS)) or 0, _MAX_LINKS)
    if not number:
        return None
    ids = (_TRANSMIT_KIB, _RECEIVE_KIB, _TRANSMIT_BYTES_5, _RECEIVE_BYTES_5, _NVLINK_SPEED, *_NVLINK_ERRORS)
    values = device.fields(*((field, link) for link in range(number) for field in ids))
    sums = device.state(_NvLinkSums)
    links = []
    for link in range(number):
        state = device.ask("nvmlDeviceGetNvLinkState", link)
        if state is None:
            continue
        sums.add("transmit_bytes", link, _bytes(values, link, _TRANSMIT_BYTES_5, _TRANSMIT_KIB))
        sums.add("receive_bytes", link, _bytes(values, link, _RECEIVE_BYTES_5, _RECEIVE_KIB))
        # 0 down, 1 up, 2 asleep to save power (NVML_NVLINK_STATE_*): it wakes with the next transfer.
        errors = _errors(values, link, _NVLINK_ERRORS) or _counters(device, link)
        links.append(_link(link, int(state) != 0, values.get((_NVLINK_SPEED, link)), errors, sums))
    kinds = (*_NVLINK_ERRORS.values(), *_COUNTERS[2:])
    return Links(tuple(links), sums.each(kinds), sums.of("transmit_bytes"), sums.of("receive_bytes"))


def collect_c2c(device: NvmlDevice) -> Links | None:
    """Read every link between this GPU and a CPU on its board (GH200, GB200); None where there is none."""
    number = min(count(device.fields(C2C_LINKS).get(C2C_LINKS)) or 0, _MAX_LINKS)
    if not number:
        return None
    ids = (_C2C_ACTIVE, _C2C_SPEED, *_C2C_ERRORS)
    values = device.fields(*((field, link) for link in range(number) for field in ids))
    sums = device.state(_C2cSums)
    links = []
    for link in range(number):
        active = values.get((_C2C_ACTIVE, link))
        if active is not None:
            speed, errors = values.get((_C2C_SPEED, link)), _errors(values, link, _C2C_ERRORS)
            links.append(_link(link, bool(active), speed, errors, sums))
    return Links(tuple(links), sums.each(_C2C_ERRORS.values()))


def _link(number: int, active: bool, megabytes: float | None, errors: Errors, sums: _Sums) -> Link:
    for name, value in errors:
        sums.add(name, number, value)
    speed = count(megabytes)
    return Link(number, active, None if speed is None else speed * _MEGABYTES, errors)


def _errors(values: Mapping[Field, float], link: int, names: Mapping[int, str]) -> Errors:
    told = ((name, count(values.get((field, link)))) for field, name in names.items())
    return tuple((name, value) for name, value in told if value is not None)


def _counters(device: NvmlDevice, link: int) -> Errors:
    told = (
        (name, count(device.ask("nvmlDeviceGetNvLinkErrorCounter", link, number)))
        for number, name in enumerate(_COUNTERS)
    )
    return tuple((name, value) for name, value in told if value is not None)


def _bytes(values: Mapping[Field, float], link: int, in_bytes: int, in_kib: int) -> int | None:
    told = count(values.get((in_bytes, link)))
    if told is not None:
        return told
    kib = count(values.get((in_kib, link)))
    return None if kib is None else kib * 1024

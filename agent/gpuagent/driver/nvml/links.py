"""Read the links of a GPU: PCI Express and NVLink, with speed, errors and bytes.

nvmlDeviceGetPcieThroughput is never called: it blocks for 20 ms per direction by design (nvml.h). The byte counters of
fields 197 and 198 cost one call and give an exact rate; where a GPU lacks them, GPM has the rate (see `profile`).
"""

from __future__ import annotations

from gpuagent.core.hardware import NvLink, Pcie
from gpuagent.driver.nvml.device import NvmlDevice, count

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


_LINK_COUNT = 91
_TRANSMIT_KIB, _RECEIVE_KIB = 138, 139
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3  # nvmlNvLinkErrorCounter_t
_MAX_LINKS = 36


def collect_nvlink(device: NvmlDevice) -> tuple[NvLink, ...]:
    """Read every link that the GPU has; () where it has none."""
    number = count(device.fields(_LINK_COUNT).get(_LINK_COUNT)) or 0
    links = range(min(number, _MAX_LINKS))
    if not links:
        return ()
    bytes_by_field = device.fields(*((field, link) for link in links for field in (_TRANSMIT_KIB, _RECEIVE_KIB)))
    found = []
    for link in links:
        active = device.ask("nvmlDeviceGetNvLinkState", link)
        if active is None:
            continue
        found.append(
            NvLink(
                link=link,
                active=bool(active),
                replay_errors=_errors(device, link, _REPLAY),
                recovery_errors=_errors(device, link, _RECOVERY),
                crc_flit_errors=_errors(device, link, _CRC_FLIT),
                crc_data_errors=_errors(device, link, _CRC_DATA),
                transmit_bytes=_kib(bytes_by_field.get((_TRANSMIT_KIB, link))),
                receive_bytes=_kib(bytes_by_field.get((_RECEIVE_KIB, link))),
            )
        )
    return tuple(found)


def _errors(device: NvmlDevice, link: int, counter: int) -> int | None:
    return count(device.ask("nvmlDeviceGetNvLinkErrorCounter", link, counter))


def _kib(value: float | None) -> int | None:
    kib = count(value)
    return None if kib is None else kib * 1024

"""Read NVLinks: state, errors and bytes."""

from __future__ import annotations

from gpuagent.core.hardware import NvLink
from gpuagent.driver.nvml.device import NvmlDevice, count

_LINK_COUNT = 91
_TRANSMIT_KIB, _RECEIVE_KIB = 138, 139
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3  # nvmlNvLinkErrorCounter_t
_MAX_LINKS = 36


def collect(device: NvmlDevice) -> tuple[NvLink, ...]:
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

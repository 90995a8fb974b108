"""Read how busy the engines of a GPU are."""

from __future__ import annotations

from gpuagent.core.hardware import Utilization
from gpuagent.driver.nvml.device import NvmlDevice, ratio

_MEDIA = tuple(f"nvmlDeviceGet{engine}Utilization" for engine in ("Encoder", "Decoder", "Jpg", "Ofa"))


def collect(device: NvmlDevice, *, slow: bool = True) -> Utilization:
    """Read engine utilization. Under MIG the driver answers none of this; GPM does (see `profile`).

    The media engines are asked at the slow rate and carried in between: four more calls a second would tell little.
    """
    media = device.state(_Media)
    if slow:
        media.ratios = tuple(_sampled(device, function) for function in _MEDIA)
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    encoder, decoder, jpeg, ofa = media.ratios
    return Utilization(
        gpu_ratio=ratio(rates.gpu) if rates else None,
        memory_ratio=ratio(rates.memory) if rates else None,
        encoder_ratio=encoder,
        decoder_ratio=decoder,
        jpeg_ratio=jpeg,
        ofa_ratio=ofa,
    )


def at_rest(device: NvmlDevice, busy: Utilization) -> bool:
    """Return whether the GPU as a whole was observed to do nothing: no kernel, no memory access, no media engine.

    A figure that is missing is no 0, unless the GPU has no such engine. Under MIG nothing is observed.
    """
    if device.identity.mig_enabled or busy.gpu_ratio != 0 or busy.memory_ratio != 0:
        return False
    media = (busy.encoder_ratio, busy.decoder_ratio, busy.jpeg_ratio, busy.ofa_ratio)
    return all(
        ratio == 0 or (ratio is None and not device.supports(function))
        for ratio, function in zip(media, _MEDIA, strict=True)
    )


class _Media:
    ratios: tuple[float | None, ...] = (None, None, None, None)


def _sampled(device: NvmlDevice, function: str) -> float | None:
    answer = device.ask(function)
    return ratio(answer[0]) if answer else None

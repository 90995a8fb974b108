"""How busy the engines of a GPU are."""

from __future__ import annotations

from gpuagent.nvml.device import Device
from gpuagent.nvml.values import ratio
from gpuagent.reading import Utilization


def collect(device: Device, *, slow: bool = True) -> Utilization:
    """Engine utilisation. Under MIG the driver answers none of this; GPM does (see `profile`).

    The media engines are asked at the slow rate and carried in between: four more calls a second would tell little.
    """
    media = device.state(_Media)
    if slow:
        media.ratios = tuple(
            _sampled(device, f"nvmlDeviceGet{engine}Utilization") for engine in ("Encoder", "Decoder", "Jpg", "Ofa")
        )
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


class _Media:
    ratios: tuple[float | None, ...] = (None, None, None, None)


def _sampled(device: Device, function: str) -> float | None:
    answer = device.ask(function)
    return ratio(answer[0]) if answer else None

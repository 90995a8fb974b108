"""Read whether the driver stays loaded for a GPU while nobody uses it (persistence mode)."""

from __future__ import annotations

from gpuagent.driver.nvml.device import NvmlDevice


def collect(device: NvmlDevice) -> dict[str, float]:
    """Return the mode as a figure, nothing where the GPU does not tell or it is neither 0 nor 1."""
    mode = device.ask("nvmlDeviceGetPersistenceMode")
    return {"persistence_mode": float(mode)} if mode in (0, 1) else {}

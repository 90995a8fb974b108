"""What the agent asks of the driver leaves the GPU as it is: so it may be killed at any moment."""

from __future__ import annotations

import re
from pathlib import Path

import gpuagent.driver.nvml

FOLDER = Path(gpuagent.driver.nvml.__file__).parent
CALL = re.compile(r"\bnvml(?:Device|System|Unit|Gpm|EventSet|Init|Shutdown|Vgpu|Gpu|Compute)\w*")
ASKS = re.compile(
    r"nvml(?:Init|InitWithFlags|Shutdown"
    r"|(?:Device|System)(?:Get|Validate)\w*"
    r"|DeviceRegisterEvents|EventSet(?:Create|Wait|Free)\w*"  # a list that the driver keeps for the process
    r"|Gpm(?:Query|SampleAlloc|SampleGet|MigSampleGet|SampleFree|MetricsGet)\w*)"
)


def test_nothing_that_changes_a_gpu_is_called() -> None:
    """GPU-12: no call sets, resets, clears or makes anything, and no CUDA context is opened: SIGKILL leaves nothing."""
    called: set[str] = set()
    for path in FOLDER.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        called |= set(CALL.findall(text))
        assert not re.search(r"libcuda|import torch|cuInit", text), path

    assert len(called) > 50, "the pattern finds the calls"
    assert sorted(name for name in called if not (ASKS.fullmatch(name) or name.endswith("_t"))) == []  # types apart

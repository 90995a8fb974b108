"""A GPU is there when NVML counts one, whatever device nodes there are."""

from __future__ import annotations

import pytest

from tests.gpu.presence import COUNT, missing_gpu

FAKE = (
    "import sys, types\n"
    "sys.modules['pynvml'] = types.SimpleNamespace(nvmlInit=lambda: {}, nvmlDeviceGetCount=lambda: {})\n"
)


@pytest.mark.parametrize(
    ("init", "count", "missing"),
    [
        ("None", "1", ""),
        ("None", "0", "NVML counts no GPU"),
        ("sys.exit('Driver Not Loaded')", "1", "Driver Not Loaded"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "1", "NVML ended the process that asked with -9"),
        ("__import__('signal').pause()", "1", "NVML does not answer"),
    ],
    ids=["one", "none", "no driver", "killed", "hangs"],
)
def test_a_gpu_is_there_when_nvml_counts_one(init: str, count: str, missing: str) -> None:
    """Else the tests that need one are skipped, with the reason."""
    hangs = "pause" in init
    assert missing_gpu(FAKE.format(init, count) + COUNT, 1.0 if hangs else 60.0) == missing

"""Tensors are told apart and sized by torch's own methods, without running code of the app."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PROBE = """
import json
import torch
from gpuagent_client.blame.tensors import live_tensors

ran = []


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3, 4))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        ran.append(str(function))
        raise SystemExit


sparse = torch.eye(3).to_sparse()
print(json.dumps([[one.storage_bytes for one in live_tensors(torch, [Wrapper(), sparse])], ran]))
"""


@pytest.mark.slow
def test_a_tensor_without_storage_is_sized_without_code_of_its_class(apps_python: Path) -> None:
    """A wrapper has the size of its shape, a sparse tensor that of its indices (int64) and values (float32)."""
    run = subprocess.run([apps_python, "-W", "ignore", "-c", PROBE], capture_output=True, text=True, check=True)

    assert json.loads(run.stdout) == [[3 * 4 * 4, 2 * 3 * 8 + 3 * 4], []]

"""Tensors are told apart and sized by torch's own methods, without running code of the app."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.client.conftest import Apps

PROBE = """
import json
import torch
from gpuagent_client.blame.tensors import live_tensors

ran = []


class Own(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        ran.append(str(function))
        raise SystemExit


sparse = torch.eye(3).to_sparse()
own = torch.Tensor._make_subclass(Own, sparse)
print(json.dumps([[one.storage_bytes for one in live_tensors(torch, [own, sparse])], ran]))
"""


@pytest.mark.slow
def test_a_tensor_without_storage_is_sized_without_code_of_its_class(apps: Apps, apps_python: Path) -> None:
    """It has the size of its shape; a sparse one of torch's own class that of its indices and values."""
    command = [str(apps_python), "-W", "ignore", "-c", PROBE]
    environment = apps.environment(GPUAGENT_DISABLE="1")
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert json.loads(run.stdout) == [[3 * 3 * 4, 2 * 3 * 8 + 3 * 4], []]

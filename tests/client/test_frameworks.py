"""Frameworks that take most of a GPU when they come up: told by the app, for nobody else can know."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuagent_client.session import frameworks
from tests.tables import table


def module(name: str, **names: Any) -> dict[str, ModuleType]:
    """As it stands in `sys.modules`."""
    made = ModuleType(name)
    made.__dict__.update(names)
    return {name: made}


def jax(*platforms: str) -> dict[str, ModuleType]:
    """With a client for each of these, as in jax 0.10."""
    return module("jax._src.xla_bridge", _backends=dict.fromkeys(platforms, object()))


def tensorflow(*growth: bool | None, up: bool = True) -> dict[str, ModuleType]:
    """With so many GPUs, as in tensorflow 2.21."""
    grows = {f"/physical_device:GPU:{index}": value for index, value in enumerate(growth)}
    context = SimpleNamespace(_context_handle=object() if up else None, _memory_growth_map=grows)
    return module("tensorflow.python.eager.context", _context=context)


@table(
    "modules",
    [
        {},
        module("jax"),
        jax(),
        jax("cpu"),
        module("jax._src.xla_bridge", _backends=None),
        module("tensorflow.python.eager.context", _context=None),
        module("tensorflow.python.eager.context"),
        tensorflow(),
        tensorflow(None, up=False),
        module("tensorflow.python.eager.context", _context=SimpleNamespace(_context_handle=1, _memory_growth_map=None)),
    ],
)
def test_what_does_not_use_the_gpu_is_not_named(modules: dict[str, ModuleType]) -> None:
    """Imported, on the CPU only, not begun yet, or of a version that keeps it elsewhere: nothing is said."""
    assert frameworks(modules, {}) == {}


@pytest.mark.parametrize(
    ("environment", "takes"),
    [
        ({}, True),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, False),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "0"}, False),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "FALSE"}, True),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, True),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "Platform"}, False),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}, True),
    ],
)
def test_jax_takes_its_share_unless_it_is_told_not_to(environment: dict[str, str], takes: bool) -> None:
    """As jaxlib itself reads the variables."""
    assert frameworks(jax("cpu", "cuda"), environment) == {"jax": takes}


@pytest.mark.parametrize(
    ("growth", "environment", "takes"),
    [
        ((None,), {}, True),
        ((True,), {}, False),
        ((True, None), {}, True),
        ((None,), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, False),
        ((True,), {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, True),
        ((True,), {"TF_FORCE_GPU_ALLOW_GROWTH": "yes"}, False),
    ],
)
def test_tensorflow_takes_all_unless_its_memory_grows(
    growth: tuple[bool | None, ...], environment: dict[str, str], takes: bool
) -> None:
    """By set_memory_growth on every GPU, which the environment overrides."""
    assert frameworks(tensorflow(*growth), environment) == {"tensorflow": takes}


def test_a_lazy_module_is_not_made_to_import() -> None:
    """A module's own __getattr__ may load what the app has not asked for."""
    made = ModuleType("jax._src.xla_bridge")

    def forbidden(name: str) -> Any:
        raise AssertionError(name)

    made.__dict__["__getattr__"] = forbidden

    assert frameworks({"jax._src.xla_bridge": made}, {}) == {}

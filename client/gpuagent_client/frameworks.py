"""Which frameworks beside torch use the GPU here, and whether they took most of it at their start.

TensorFlow and JAX do, unless they are told not to. Nothing in a process's name tells, and its environment is its own
user's secret: so the app says it. What is only imported has taken nothing, hence this looks whether a framework has the
GPU up, and calls nothing of it: a call could bring it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

_JAX_GPU_PLATFORMS = ("cuda", "gpu", "rocm")


def frameworks(modules: Mapping[str, ModuleType], environment: Mapping[str, str]) -> dict[str, bool]:
    """By name, whether it took most of the GPU when it came up; those are left out that do not use the GPU.

    `modules` is `sys.modules`. What a version keeps elsewhere is not found, and then nothing is said.
    """
    found: dict[str, bool] = {}
    if _jax_is_up(modules):
        found["jax"] = _jax_preallocates(environment)
    growing = _tensorflow_growth(modules)
    if growing:
        # The environment overrides what the program has set with set_memory_growth, by these two words alone.
        forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
        found["tensorflow"] = forced != "true" if forced in {"true", "false"} else not all(growing)
    return found


def _jax_is_up(modules: Mapping[str, ModuleType]) -> bool:
    """Its clients by platform, once it has any."""
    backends = _names(modules.get("jax._src.xla_bridge")).get("_backends")
    return isinstance(backends, dict) and any(name in backends for name in _JAX_GPU_PLATFORMS)


def _jax_preallocates(environment: Mapping[str, str]) -> bool:
    """75 % by default: https://docs.jax.dev/en/latest/gpu_memory_allocation.html.

    As jaxlib reads them: the allocator's name in any case, but `False` and not `FALSE` (`xla_client.py`,
    `generate_pjrt_gpu_plugin_options`).
    """
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        return False
    return environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "") not in {"0", "false", "False"}


def _tensorflow_growth(modules: Mapping[str, ModuleType]) -> list[bool]:
    """Of each GPU that TensorFlow has begun to use, whether its memory grows with the need; [] where it uses none.

    https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
    """
    context = _names(modules.get("tensorflow.python.eager.context")).get("_context")
    own = getattr(context, "__dict__", {})
    if own.get("_context_handle") is None:  # the devices may be listed already, but nothing is allocated
        return []
    grows = own.get("_memory_growth_map")
    return [value is True for value in list(grows.values())] if isinstance(grows, dict) else []


def _names(module: ModuleType | None) -> Mapping[str, object]:
    """Not getattr: a module's own __getattr__ may import what the app has not asked for."""
    found = getattr(module, "__dict__", {})
    return found if isinstance(found, dict) else {}

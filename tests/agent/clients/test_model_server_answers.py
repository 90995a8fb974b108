"""What vLLM, SGLang, Ollama and Triton answer, and anything else that may come instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.clients.model_servers import BadAnswer, read_ollama, read_sglang, read_triton, read_vllm
from gpuagent.core.metrics.clients import ServerReading
from tests.tables import table

Read = Callable[[str, bytes], ServerReading]

GIB = 2**30
VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a{b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
vllm:cache_config_info{block_size="16"} 1.0
"""
TRITON = b"""\
nv_inference_pending_request_count{model="a",version="1"} 2
nv_inference_pending_request_count{model="b",version="1"} 3
nv_pinned_memory_pool_used_bytes 1048576
nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 5.0e+10
"""


def test_vllm() -> None:
    """The fullest engine's cache, and the requests of all of them."""
    reading = read_vllm("llm", VLLM)

    assert (reading.source, reading.kind, reading.up) == ("llm", "vllm", True)
    assert (reading.kv_cache_usage_ratio, reading.requests_running, reading.requests_waiting) == (0.5, 5, 1)


def test_vllm_of_another_version() -> None:
    """The older name of the cache's usage; what is not there is None."""
    reading = read_vllm("llm", b'vllm:gpu_cache_usage_perc{model_name="a"} 0.75\n')

    assert (reading.kv_cache_usage_ratio, reading.requests_running) == (0.75, None)


@pytest.mark.parametrize("graph", ["graph", "cuda_graph"])
def test_sglang(graph: str) -> None:
    """Weights, cache and graphs in bytes, summed over its ranks, by either version's names."""
    usage = {"weight": 14.5, "kvcache": 50, graph: 1.25, "token_capacity": 400_000}
    reading = read_sglang("s", json.dumps({"internal_states": [{"memory_usage": usage}] * 2}).encode())

    assert reading.memory_bytes == {"weights": 29 * GIB, "kv_cache": 100 * GIB, "graphs": int(2.5 * GIB)}


def test_ollama() -> None:
    """What it reckons each model takes on GPUs; none is loaded is an answer, too."""
    models = [{"name": "llama3:8b", "size": 7, "size_vram": 5 * GIB}, {"name": "x\x1b", "size_vram": 0}, {"name": "y"}]
    reading = read_ollama("o", json.dumps({"models": models}).encode())

    assert reading.model_bytes == {"llama3:8b": 5 * GIB, "x\\x1b": 0}
    assert read_ollama("o", b'{"models":[]}').up


def test_triton() -> None:
    """Its queue and its pinned pool; the GPU's memory is NVML's to tell."""
    reading = read_triton("t", TRITON)

    assert (reading.requests_waiting, reading.memory_bytes) == (5, {"pinned": 1024**2})


@table(
    "read, body",
    product(
        [read_vllm, read_sglang, read_ollama, read_triton],
        [b"", b"<html>", b"[]", b"null", b'{"models":7}', b'{"internal_states":[7]}', b"[" * 100_000, b"up 1\n"],
    ),
)
def test_other_answers(read: Read, body: bytes) -> None:
    """Another program's answer is told from the server's."""
    with pytest.raises(BadAnswer):
        read("x", body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(_JSON, st.sampled_from([read_sglang, read_ollama]))
def test_any_json(value: Any, read: Read) -> None:
    """Any values at the places that are read are a reading of finite figures, or BadAnswer."""
    models = {"models": [{"name": "m", "size_vram": value}, value]}
    states = {"internal_states": [{"memory_usage": {"weight": value}}, {"memory_usage": value}, value]}
    reading = read("x", json.dumps(models | states).encode())

    assert all(isinstance(size, int) for size in (*reading.memory_bytes.values(), *reading.model_bytes.values()))


@given(st.binary(max_size=200), st.sampled_from([read_vllm, read_triton]))
def test_any_text(tail: bytes, read: Read) -> None:
    """Garbage between the lines of a metrics page changes nothing but what it says itself."""
    page = b"vllm:num_requests_running 3\nnv_inference_pending_request_count 3\n" + tail

    assert read("x", page).up

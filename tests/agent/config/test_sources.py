"""Model servers and embedded clients in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError
from gpuagent.config.reference import to_yaml
from tests.agent.config.loading import load, write


def test_each_kind_of_server(tmp_path: Path) -> None:
    """A source is one server, known by its key; its address has no slash at the end."""
    text = """
sources:
  - {name: llm, vllm: "http://127.0.0.1:8000/", match: [my-llm]}
  - {name: sgl, sglang: "http://127.0.0.1:30000"}
  - {name: local, ollama: "http://127.0.0.1:11434", interval: 1m}
  - {name: vision, triton: "http://127.0.0.1:8002"}
"""
    config = load(write(tmp_path, text))

    assert [(source.kind, source.url) for source in config.sources] == [
        ("vllm", "http://127.0.0.1:8000"), ("sglang", "http://127.0.0.1:30000"), ("ollama", "http://127.0.0.1:11434"),
        ("triton", "http://127.0.0.1:8002"),
    ]  # fmt: skip
    assert [source.interval for source in config.sources] == [15.0, 15.0, 60.0, 15.0]
    assert config.preallocates == ("my-llm",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sources: [{name: a}]", "needs one of vllm, sglang, ollama"),
        ('sources: [{name: a, vllm: "http://a", triton: "http://a"}]', "cannot stand beside vllm"),
        ('sources: [{vllm: "http://a"}]', "name: is missing"),
        ('sources: [{name: a, vllm: "a:8000"}]', "must be a URL"),
        ('sources: [{name: a, vlm: "http://a"}]', "unknown source"),
        ('sources: [{name: a, vllm: "http://a"}, {name: a, ollama: "http://b"}]', "already the name of sources[0]"),
        ('sources: [{name: a, vllm: "http://a", match: ["("]}]', "not a regular expression"),
        ("clients: {max_connections: 0}", "too little"),
        ("clients: {interval: 5m}", "too much"),
        ("leaks: {blame: always}", "manual"),
    ],
)
def test_faults(tmp_path: Path, text: str, words: str) -> None:
    """What is wrong is said, with what is allowed."""
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, text))
    assert words in str(raised.value)


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    """`gpuagent config show` goes into tickets."""
    config = load(write(tmp_path, 'sources: [{name: a, vllm: "http://me:secret@a:8000"}]'))

    assert "secret" not in to_yaml(config)
    assert "secret" not in repr(config)

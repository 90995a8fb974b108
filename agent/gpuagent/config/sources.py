"""Model servers that tell of their memory themselves, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from gpuagent.config.faults import Problem
from gpuagent.config.section import Section
from gpuagent.config.values import Duration, Pattern, Text, WebUrl

KINDS = ("vllm", "sglang", "ollama", "triton")


class ServerSource(Section):
    """A model server on this node that is asked what its memory is for: vLLM, SGLang, Ollama or Triton."""

    key_noun: ClassVar[str] = "source"

    name: Text = Field(description="The `source` label of its series.")
    vllm: WebUrl | None = Field(default=None, repr=False, description="Address of a vLLM server: `/metrics`.")
    sglang: WebUrl | None = Field(
        default=None, repr=False, description="Address of an SGLang server: `/server_info`, or `/get_server_info`."
    )
    ollama: WebUrl | None = Field(default=None, repr=False, description="Address of an Ollama server: `/api/ps`.")
    triton: WebUrl | None = Field(
        default=None, repr=False, description="Address of the metrics of a Triton server: `/metrics`."
    )
    interval: Duration = Field(default=15.0, ge=1, le=3600, description="Time between two questions.")
    match: tuple[Pattern, ...] = Field(
        default=(),
        max_length=100,
        description="Its processes, where their name and command line do not tell that they are such a server: as in "
        "`processes.preallocates`, for a server that takes its share of the GPU up front (vLLM, SGLang).",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, KINDS)

    @property
    def kind(self) -> str:
        """Which server it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return str(getattr(self, self.kind)).rstrip("/")

"""Asking servers: over real HTTP, in bounds, again and again."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading

import pytest

from gpuagent.clients.model_servers import FetchError, Sources, fetch
from gpuagent.config.agent import Processes, ServerSource
from gpuagent.config.models import Config
from gpuagent.core.metrics.clients import SOURCE_FAMILIES
from gpuagent.core.metrics.series import series
from gpuagent.core.sections import read_section
from tests.agent.clients.test_model_server_answers import VLLM
from tests.fakes.answering import answering, read_request, says


def source(name: str = "llm", kind: str = "vllm", url: str = "http://127.0.0.1:1/", **keys: object) -> ServerSource:
    """One that is configured."""
    made, problems = read_section(ServerSource, {"name": name, kind: url, **keys})
    assert made is not None, problems
    return made


def test_a_server_is_asked_over_http() -> None:
    """At its path, below whatever path its address has."""
    requests: list[bytes] = []
    with answering(says(VLLM, requests=requests), unix=False) as url:
        reading = Sources([]).ask(source(url=f"{url}/base/"))

    assert requests[0].startswith(b"GET /base/metrics HTTP/1.1\r\n")
    assert (reading.up, reading.requests_running) == (True, 5)


def test_a_server_that_moved_its_path() -> None:
    """SGLang's newer path first, then the older one; another error is not tried again."""
    asked: list[str] = []

    def answer(url: str) -> bytes:
        asked.append(url)
        raise FetchError("HTTP 404", 404 if len(asked) < 4 else 500)

    assert Sources([], answer).ask(source(kind="sglang", url="http://h")).problem == "HTTP 404"
    assert asked == ["http://h/server_info", "http://h/get_server_info"]
    asked.append("")
    Sources([], answer).ask(source(kind="sglang", url="http://h"))
    assert asked[3:] == ["http://h/server_info"]


@pytest.mark.parametrize(
    ("status", "body", "words"), [("500 Oh", b"", "HTTP 500"), ("302 F", b"", "HTTP 302"), ("200 OK", b"<", "metrics")]
)
def test_an_answer_that_cannot_be_used(status: str, body: bytes, words: str) -> None:
    """The server is down, and why is told; a redirect is not followed."""
    with answering(says(body, status), unix=False) as url:
        reading = Sources([]).ask(source(url=url))

    assert not reading.up
    assert words in reading.problem


def test_nobody_listens() -> None:
    """A server that has not started is down; its address, which may hold a password, is not repeated."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reading = Sources([]).ask(source(url=f"http://me:secret@127.0.0.1:{port}"))

    assert reading.problem == "Connection refused"


def test_an_answer_is_bounded_in_time_and_size() -> None:
    """A server that trickles, hangs or babbles costs no more than that."""

    def trickle(connection: socket.socket, over: threading.Event) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        over.wait(20)

    with answering(trickle, unix=False) as url, pytest.raises(FetchError, match="no answer in time"):
        fetch(url, timeout_seconds=0.2)
    with answering(says(b"x" * 2000), unix=False) as url, pytest.raises(FetchError, match="larger"):
        fetch(url, max_bytes=1000)


def test_all_are_asked_and_one_that_hangs_delays_no_other() -> None:
    """Each has a thread of its own; closing does not wait for it."""
    hang = threading.Event()

    def answer(url: str) -> bytes:
        if "hangs" in url:
            hang.wait(30)
        return VLLM

    async def run() -> None:
        both = source("a", url="http://hangs"), source("b", url="http://works")
        sources = Sources(both, answer)
        sources.open()
        async with asyncio.timeout(20):
            while not sources.readings():  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.005)
        assert [reading.source for reading in sources.readings()] == ["b"]
        await sources.reload([both[1]])
        assert [reading.source for reading in sources.readings()] == ["b"]
        await sources.reload([source("c")])
        assert sources.readings() == ()
        await sources.close()

    asyncio.run(run())
    hang.set()


def test_every_family_has_samples() -> None:
    """What a server tells is exported under its name and kind."""
    reading = dataclasses.replace(
        Sources([], lambda _: VLLM).ask(source()), memory_bytes={"weights": 1}, model_bytes={"m": 2}
    )
    found = {
        family.name: samples for family, samples in series(None, 0.0, extra_families=[(SOURCE_FAMILIES, (reading,))])
    }

    assert {family.name for family in SOURCE_FAMILIES} <= found.keys()
    assert found["gpuagent_source_memory_bytes"] == [(("llm", "vllm", "weights"), 1.0)]


def test_configured_servers_that_preallocate_are_known() -> None:
    """A server whose process has another name is named by a pattern; Ollama takes no more than its models."""
    config = Config(
        processes=Processes(preallocates=("jax",)),
        sources=(
            source("a", "vllm", "http://a", match=("my-llm",)),
            source("b", "ollama", "http://b", match=("ollama",)),
        ),
    )
    assert config.preallocates == ("jax", "my-llm")

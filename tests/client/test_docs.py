"""The documentation of the client: its examples run, and what it names is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from gpuagent_client.settings import COMMANDS
from tests.client.conftest import ROOT, Apps

TEXT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
AROUND = """
from faketorch import GIB as _GIB, FakeTorch
_torch = FakeTorch().install().start_cuda()

class _Model:
    def __call__(self, audio):
        return "heard " + audio

def load_model():
    _torch.allocate(_GIB)
    return _Model()

def train(job):
    return job

async def generate(message):
    return message

class _Websocket:
    def __init__(self):
        self.sent = []
    async def send_text(self, text):
        self.sent.append(text)

cache = {}
"""
AFTERWARDS = """
if "transcribe" in globals():
    assert transcribe("one", "small") == transcribe("one", "large") == "heard one"
if "on_message" in globals():
    import asyncio
    websocket = _Websocket()
    asyncio.run(on_message(websocket, "hello"))
    gate.try_acquire(lambda: None)
    gate.waiting_limit = 0
    asyncio.run(on_message(websocket, "hello"))
    assert websocket.sent == ["hello", "busy, try again in 1 s"], websocket.sent
"""


def test_there_are_examples() -> None:
    """What follows must not pass on nothing."""
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS)
def test_what_examples_import_is_there(block: str) -> None:
    """Every name that is taken from the client, by import or as an attribute."""
    for node in ast.walk(ast.parse(block, feature_version=(3, 9))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gpuagent_client"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gpuagent_client":
            assert hasattr(importlib.import_module("gpuagent_client"), node.attr)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_examples_run(apps: Apps, apps_python: Path, block: str) -> None:
    """As they are, with the names that they take for given, and every mistake an error."""
    app = apps.code(AROUND + block + AFTERWARDS, python=apps_python, GPUAGENT_STRICT="1")
    output, _ = app.communicate()

    assert app.returncode == 0, output


def test_every_command_is_explained() -> None:
    """Whoever forbids one knows what it was."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", TEXT.partition("## What the agent may ask for")[2], re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"\w+", row)} >= COMMANDS


def test_the_shape_is_this() -> None:
    """The lines that are longer than a screen, and links to files that are not there."""
    assert [line for line in TEXT.splitlines() if len(line) > 122] == []
    links = re.findall(r"\]\((\w+\.md)\)", TEXT)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

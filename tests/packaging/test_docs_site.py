"""The documentation as a site: complete, with links that lead somewhere, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> Any:
    """The program that builds it."""
    loader = importlib.machinery.SourceFileLoader("docs_program", str(ROOT / "scripts" / "docs"))
    spec = importlib.util.spec_from_loader("docs_program", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration and the pages as they are laid out."""
    folder = tmp_path_factory.mktemp("site")
    program.SOURCE = folder / ".site" / "source"
    program.SITE = folder / "site"
    program.stage()
    shutil.copy(ROOT / "mkdocs.yml", folder)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build what lies there."""
    command = [sys.executable, "-m", "mkdocs", "build", "--clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_site_is_whole(folder: Path) -> None:
    """It builds without a warning, lists and tables are that, and no page loads anything from elsewhere."""
    run = build(folder)
    assert run.returncode == 0, run.stderr

    loaded = re.compile(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="?(?:https?:)?//')
    raw = re.compile(r"<p>(?:(?!</p>).)*\n(?:[-*] |\| |\d+\. |```)", re.DOTALL)
    pages = {path: path.read_text(encoding="utf-8") for path in (folder / "site").rglob("*.html")}
    assert len(pages) > 60
    assert [str(path) for path, text in pages.items() if loaded.search(text)] == []
    articles = {path: text.partition("<article")[2].partition("</article>")[0] for path, text in pages.items()}
    assert [str(path) for path, text in articles.items() if raw.search(text)] == []
    assert (folder / "site" / "docs" / "openapi.json").is_file()


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("install.md#no-such-heading", "does not contain an anchor '#no-such-heading'"),
        ("no_such_page.md", "'docs/no_such_page.md' is not found among documentation files"),
    ],
)
def test_a_broken_link_is_an_error(folder: Path, link: str, words: str) -> None:
    """A page or heading that is not there fails the build, with its name."""
    page = folder / ".site" / "source" / "docs" / "top.md"
    text = page.read_text(encoding="utf-8")
    try:
        page.write_text(f"{text}\n[broken]({link})\n", encoding="utf-8")
        run = build(folder)
    finally:
        page.write_text(text, encoding="utf-8")

    assert run.returncode != 0
    assert words in run.stderr


def test_versions_stand_beside_each_other(program: Any, tmp_path: Path) -> None:
    """The newest release is where the root leads; the selector lists all, and a version is replaced by itself alone."""
    program.SITE = tmp_path / "site"
    program.SITE.mkdir()
    for version in ("main", "0.9.0", "0.10.0", "0.2.0"):
        (program.SITE / "index.html").write_text(version)
        program.publish(tmp_path / "public", version)

    public = tmp_path / "public"
    versions = json.loads((public / "versions.json").read_text())
    assert [one["version"] for one in versions] == ["main", "0.10.0", "0.9.0", "0.2.0"]
    assert [one["version"] for one in versions if one["aliases"]] == ["0.10.0"]
    assert "url=0.10.0/index.html" in (public / "index.html").read_text()
    assert {name: (public / name / "index.html").read_text() for name in ("main", "0.9.0")} == {
        "main": "main",
        "0.9.0": "0.9.0",
    }

"""Environments side by side, and the links that say which one serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.install.placing import HOME, Layout, Releases


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """In a folder of their own."""
    return Releases(Layout(root=tmp_path.resolve()))


def environment(releases: Releases, name: str) -> Path:
    """An environment, as far as links care."""
    path = releases.home / "versions" / name
    path.mkdir(parents=True)
    return path


def test_none_at_first(releases: Releases) -> None:
    """There is nothing to go back to."""
    assert (releases.current, releases.previous) == (None, None)


def test_an_upgrade_keeps_the_one_before(releases: Releases) -> None:
    """The link of before leads to what served."""
    one, two = environment(releases, "1"), environment(releases, "2")
    releases.activate(one)
    assert (releases.current, releases.previous) == (one, None)
    releases.activate(two)
    assert (releases.current, releases.previous) == (two, one)


def test_going_back_is_an_upgrade_too(releases: Releases) -> None:
    """Back and forth: neither is lost."""
    one, two = environment(releases, "1"), environment(releases, "2")
    for each in (one, two, one):
        releases.activate(each)
    assert (releases.current, releases.previous) == (one, two)


def test_a_repair_changes_no_link(releases: Releases) -> None:
    """The same version installed again must not become its own way back."""
    one, two = environment(releases, "1"), environment(releases, "2")
    for each in (one, two, two):
        releases.activate(each)
    assert (releases.current, releases.previous) == (two, one)


def test_taken_back(releases: Releases) -> None:
    """After a version that does not start, both links are as they were, also where there was no way back."""
    one, two, three = (environment(releases, name) for name in "123")
    releases.activate(one)
    releases.activate(two)
    releases.take_back(one, None)
    assert (releases.current, releases.previous) == (one, None)
    releases.activate(two)
    releases.activate(three)
    releases.take_back(two, one)
    assert (releases.current, releases.previous) == (two, one)


def test_only_what_is_out_of_use_is_removed(releases: Releases, tmp_path: Path) -> None:
    """The third one goes; those that serve, and one that was made elsewhere, stay."""
    one, two, three = (environment(releases, name) for name in "123")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for each in (one, two, three):
        releases.activate(each)
    everything: tuple[Path | None, ...] = (one, two, three, elsewhere, None)
    for gone in everything:
        releases.forget(gone)
    assert [each.exists() for each in (one, two, three, elsewhere)] == [False, True, True, True]


def test_links_are_relative(releases: Releases, tmp_path: Path) -> None:
    """A staging folder is packed and unpacked at /: its own path must not be in it."""
    releases.activate(environment(releases, "1"))
    assert str(Layout(root=tmp_path).at(HOME / "current").readlink()) == "versions/1"


def test_a_link_that_leads_nowhere(releases: Releases) -> None:
    """An environment removed by hand is not gone back to."""
    one, two = environment(releases, "1"), environment(releases, "2")
    releases.activate(one)
    releases.activate(two)
    one.rmdir()
    assert releases.previous is None

"""Whose directories the agent uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.runtime.state_files import check_socket_directory, make_own_directory


def test_it_is_made_for_the_agent_alone(tmp_path: Path) -> None:
    """Others cannot look into it; one that is there is taken as it is."""
    make_own_directory(tmp_path / "a" / "b")
    make_own_directory(tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").stat().st_mode & 0o007 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another user needs root")
@pytest.mark.parametrize("given_away", ["a", "a/b"])
def test_another_users_directory_is_refused(tmp_path: Path, given_away: str) -> None:
    """Somebody who made it first, below /tmp, could put a socket or a database of their own there."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.chown(tmp_path / given_away, 65534, 65534)

    with pytest.raises(PermissionError, match="belongs to another user"):
        make_own_directory(tmp_path / "a" / "b")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_directory_for_sockets_that_others_can_write(tmp_path: Path, mode: int) -> None:
    """Anybody could put a socket in the place of ours; sticky does not help while the agent is down."""
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    place.chmod(0o755)
    (tmp_path / "link").symlink_to(place)
    for path in (place, tmp_path / "link"):
        check_socket_directory(path)
    place.chmod(mode)
    for path in (place, tmp_path / "link"):
        with pytest.raises(PermissionError, match="can be written by others"):
            check_socket_directory(path)
    place.chmod(0o755)
    (tmp_path / "a").chmod(mode)
    if mode & 0o1000:
        check_socket_directory(place)  # as /tmp: nobody takes a name of ours away
    else:
        with pytest.raises(PermissionError, match="can be written by others"):
            check_socket_directory(place)

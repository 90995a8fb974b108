"""What paths lead to by symbolic links, and which links a pattern of paths means.

Everything here asks file systems, which may hang: it is called in a thread that nobody has to wait for.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gpuagent_alerts.remedies.files.mounts import fuse_of_users
from gpuagent_alerts.remedies.files.path_walk import MAX_LINKS
from gpuagent_alerts.remedies.safeguards.never_list import matches

_NOT_SEARCHED = ("/proc", "/sys", "/dev")
_CHECK_CLOCK_EVERY = 256


class SearchLimitExceeded(Exception):
    """A pattern means more than can be looked through, or what cannot be read."""


class SearchLimits(NamedTuple):
    """How much a pattern may mean, in what is root's and in what is each other user's."""

    links: int = 4096
    entries: int = 200_000
    """More than the virtual environments of a server have; the walk takes about 1 µs for each."""
    seconds: float = 1.0
    """The same for each; `in_all_seconds` together."""
    in_all_seconds: float = 5.0


class SymbolicLink(NamedTuple):
    """A symbolic link, or a directory on a path with links, and where it leads."""

    name: str
    target: str
    """Absolute, with all links followed."""


class UnreadableDirectory(NamedTuple):
    """A user's directory that a pattern may mean, and that could not be looked into, or not to its end."""

    folder: str
    uid: int
    why: str


def spellings(path: str) -> tuple[str, ...]:
    """Return an absolute path, and each one that it leads to, link by link; the last is the file itself.

    What does not exist leads to itself. In the directories of all but the first there are no links.
    """
    found = [path]
    current = path
    for _ in range(MAX_LINKS):
        folder, name = os.path.split(current)
        placed = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118  ".." stays where it is
        found.append(placed)
        try:
            current = os.path.join(os.path.dirname(placed), os.readlink(placed))  # noqa: PTH115, PTH118, PTH120
        except (OSError, ValueError):
            break
    file = os.path.realpath(path)
    return (*(each for each in dict.fromkeys(found) if each != file), file)


def find_links(
    pattern: str,
    bounds: SearchLimits | None = None,
    unread: list[UnreadableDirectory] | None = None,
    files: dict[int, str] | None = None,
) -> Iterator[SymbolicLink]:
    """Yield each link that a pattern of absolute paths means, or that lies on the way to what it means.

    `*` stands for any text, slashes too: everything below the first directory with one is searched, also
    through links, but for those that lead back to where the search began. What a user keeps from being looked into is
    added to `unread`: a FUSE file system of theirs is not even asked, as it may not answer. So is where they have more
    than the bounds, which hold for each user: what a user's link leads to counts as that user's. The files that the
    pattern means are added to `files`, by their inodes. Raises SearchLimitExceeded for what is root's.
    """
    if not pattern.startswith("/"):
        return  # it means whatever is called so, wherever it lies: its words are all that can be compared
    bounds = bounds or SearchLimits()
    literal = pattern.partition("*")[0]
    base = os.path.dirname(literal)  # noqa: PTH120
    real = os.path.realpath(base)
    if real != base:
        yield SymbolicLink(base, real)
    search = _Search(pattern, literal, real, bounds, [] if unread is None else unread, files)
    yield from search.run(base)


_ROOT = 0


class _Folder(NamedTuple):
    """A directory to look into."""

    path: str
    real: str
    """The same without links."""
    payer: int
    """The first user but root to whom something on the way belongs; root where nothing does."""


@dataclass(slots=True)
class _Spent:
    """What was looked at for one user."""

    links: int = 0
    entries: int = 0
    seconds: float = 0.0


class _UserLimitExceeded(SearchLimitExceeded):
    """A user has more than can be looked through."""


class _Search:
    def __init__(
        self,
        pattern: str,
        literal: str,
        real: str,
        bounds: SearchLimits,
        unread: list[UnreadableDirectory],
        files: dict[int, str] | None,
    ) -> None:
        self._files = files
        self._unread = unread
        self._pattern = pattern
        self._literal = literal
        self._real = real
        self._bounds = bounds
        self._spent: defaultdict[int, _Spent] = defaultdict(_Spent)
        self._given_up: set[int] = set()
        self._began = time.monotonic()

    def run(self, base: str) -> Iterator[SymbolicLink]:
        waiting, visited = [_Folder(base, self._real, _ROOT)], {(_ROOT, self._real)}
        while waiting:
            folder = waiting.pop()
            if (uid := self._fuse_user(folder.real)) is not None:
                self._unread.append(UnreadableDirectory(folder.path, uid, "a FUSE file system"))
                continue
            folder = folder._replace(payer=folder.payer or _owner(folder.real))
            if folder.payer in self._given_up:
                continue
            began = time.monotonic()
            try:
                for found in self._look_into(folder):
                    if isinstance(found, _Folder):
                        waiting.append(found)
                        continue
                    yield found
                    place = folder.payer or _owner(found.name), found.target
                    if place not in visited and os.path.isdir(found.target):  # noqa: PTH112
                        visited.add(place)
                        waiting.append(_Folder(found.name, found.target, place[0]))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except _UserLimitExceeded as error:
                self._given_up.add(folder.payer)
                self._unread.append(UnreadableDirectory(folder.path, folder.payer, str(error)))
            except OSError as error:
                self._unread.append(_unreadable(folder, error))
            finally:
                self._spent[folder.payer].seconds += time.monotonic() - began

    def _look_into(self, folder: _Folder) -> Iterator[_Folder | SymbolicLink]:
        """Yield the directories and links in a directory. Raises OSError, SearchLimitExceeded."""
        began = time.monotonic()
        with os.scandir(folder.path) as entries:
            for entry in entries:
                self._count(folder.payer, began)
                path = f"{folder.path.rstrip('/')}/{entry.name}"
                if not self._may_fit(path):
                    continue
                if entry.is_symlink():
                    if link := self._link(path):
                        self._spent[folder.payer].links += 1
                        self._bound(folder.payer, self._spent[folder.payer].links, self._bounds.links, "links")
                        yield link
                elif self._is_directory(entry, path):
                    yield _Folder(path, f"{folder.real.rstrip('/')}/{entry.name}", folder.payer)

    def _is_directory(self, entry: os.DirEntry[str], path: str) -> bool:
        """Return whether it is one; take note of a file that the pattern means. Raises OSError."""
        if entry.is_dir(follow_symlinks=False):
            return True
        if self._files is not None and matches(path, self._pattern):
            self._files[entry.stat(follow_symlinks=False).st_ino] = path
        return False

    @cached_property
    def _fuse(self) -> Mapping[str, int]:
        try:
            return fuse_of_users(Path("/proc/self/mountinfo").read_bytes())
        except (OSError, ValueError):
            return {}

    def _fuse_user(self, path: str) -> int | None:
        """Return whose FUSE file system a path without links lies on; None for none of a user."""
        return next((uid for each, uid in self._fuse.items() if path == each or path.startswith(f"{each}/")), None)

    def _led_to(self, path: str) -> str:
        """Return the path that a link names; "" where it cannot be read."""
        try:
            return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))  # noqa: PTH115, PTH118, PTH120
        except OSError:
            return ""

    def _link(self, path: str) -> SymbolicLink | None:
        """Return a link that the pattern means, or that leads to a directory below which it may; None for any other."""
        if self._fuse and (uid := self._fuse_user(self._led_to(path))) is not None:
            self._unread.append(UnreadableDirectory(path, uid, "it leads to a FUSE file system"))
            return None
        target = os.path.realpath(path)
        if os.path.isdir(target):  # noqa: PTH112
            if self._leads_back(target):
                return None
        elif not matches(path, self._pattern):
            return None
        return SymbolicLink(path, target)

    def _may_fit(self, path: str) -> bool:
        """Return whether a path, or one below it, begins as the pattern does."""
        return path.startswith(self._literal) or self._literal.startswith(f"{path}/") or self._literal == path

    def _leads_back(self, target: str) -> bool:
        """Return whether a directory holds what is searched, as `/`, or is one of the kernel's."""
        return (
            self._real == target or self._real.startswith(target.rstrip("/") + "/") or target.startswith(_NOT_SEARCHED)
        )

    def _count(self, payer: int, began: float) -> None:
        spent = self._spent[payer]
        spent.entries += 1
        self._bound(payer, spent.entries, self._bounds.entries, "files")
        if spent.entries % _CHECK_CLOCK_EVERY:
            return
        now = time.monotonic()
        kind = _UserLimitExceeded if payer else SearchLimitExceeded
        for spent_seconds, most in (
            (spent.seconds + now - began, self._bounds.seconds), (now - self._began, self._bounds.in_all_seconds),
        ):  # fmt: skip
            if spent_seconds > most:
                raise kind(f"it takes more than {most:g} s to look through what is below it")

    def _bound(self, payer: int, count: int, most: int, what: str) -> None:
        if count > most:
            kind = _UserLimitExceeded if payer else SearchLimitExceeded
            raise kind(f"there are more than {most} {what} below it")


def _owner(path: str) -> int:
    """Return the owner of a directory or link; root's where that cannot be seen."""
    try:
        return os.lstat(path).st_uid
    except OSError:
        return _ROOT


def _unreadable(folder: _Folder, error: OSError) -> UnreadableDirectory:
    """Return which user keeps a directory from being read. Raises SearchLimitExceeded for root, or if unknown."""
    uid = folder.payer or _owner(folder.path)
    if not uid:
        raise SearchLimitExceeded(f"{folder.path} cannot be read ({error.strerror})") from error
    return UnreadableDirectory(folder.path, uid, f"{error.strerror}")

"""The kernel is the oracle: of a path without a fault, another user cannot change anything, however hard they try."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gpuagent_alerts.remedies.files.path_walk import walk
from tests.alerts.remedies.trees import (
    ALICE,
    BOB,
    GROUP,
    USER,
    acl,
    give,
    make_directory,
    make_file,
    needs_root,
    open_tree,
    set_acl,
)

pytestmark = needs_root

ATTACKERS_GROUPS = [0, BOB]
"""A member of the group root is not root."""


class Element(NamedTuple):
    """A directory on the way, and how it is reached."""

    link: str
    """"" for no link, else whether it is `relative` or `absolute`."""
    place: int
    """In which of the directories so far the link's target lies."""
    link_owner: int
    owner: int
    group: int
    mode: int
    acl: bytes | None


OWNERS = st.sampled_from([0] * 30 + [ALICE, BOB])
HARMLESS = [
    acl(*who, group=5, mask=mask, other=5) for who, mask in (((), 5), ([(USER, 7, ALICE)], 5), ([(USER, 7, 0)], 7))
]
HARMFUL = [acl(who, group=5, other=5) for who in ((USER, 7, ALICE), (GROUP, 7, BOB), (GROUP, 7, 0))]
ACLS = st.sampled_from([None] * 20 + HARMLESS * 3 + HARMFUL)
ELEMENTS = st.builds(
    Element,
    st.sampled_from(["", "", "relative", "absolute"]),
    st.integers(0, 5),
    OWNERS,
    OWNERS,
    st.sampled_from([0, 0, ALICE, BOB]),
    st.sampled_from([0o755] * 12 + [0o711] * 6 + [0o1777] * 6 + [0o1775] * 3 + [0o775, 0o777, 0o557]),
    ACLS,
)
FILES = ELEMENTS.map(lambda each: each._replace(mode=each.mode & 0o666 | 0o400))


def build(tree: Path, elements: list[Element], file: Element) -> tuple[Path, list[Path]]:
    """Make a path of these elements; return it, and the true place of everything that it goes through."""
    path, here = tree, tree
    directories, everything = [tree], []
    for number, each in enumerate([*elements, file]):
        name = "file" if number == len(elements) else f"d{number}"
        where = directories[each.place % len(directories)] if each.link else here
        made = where / name
        if each is file:
            make_file(made, "root's words")
        else:
            make_directory(made)
        if each.link:
            link = here / f"l{number}"
            link.symlink_to(made if each.link == "absolute" else os.path.relpath(made, here))
            everything.append(give(link, each.link_owner))
        path, here = path / (f"l{number}" if each.link else name), made
        everything.append(made)
        if each is not file:
            directories.append(made)
    for made, each in zip([*directories[1:], here], [*elements, file], strict=True):
        give(made, each.owner, each.group)
        made.chmod(each.mode)
        if each.acl is not None:
            set_acl(made, each.acl)
    return path, everything


def attacks(everything: list[Path]) -> Iterator[Callable[[], object]]:
    """Everything that another user can try on an element: each raises OSError unless it has changed something."""
    for each in everything:
        if not each.is_symlink():
            yield partial(each.chmod, 0o777)
            yield partial(os.truncate, each, 0)
            yield partial(os.removexattr, each, "system.posix_acl_access")
            yield partial(os.open, each, os.O_WRONLY | os.O_APPEND)
        yield partial(os.chown, each, ALICE, ALICE, follow_symlinks=False)
        yield partial(each.rename, each.with_name("gone"))
        yield each.unlink
        yield each.rmdir
        yield partial(_replace, each)


def _replace(element: Path) -> None:
    """Put a link of one's own into its place."""
    mine = element.with_name("mine")
    mine.symlink_to("/etc/passwd")
    try:
        mine.rename(element)
    finally:
        with suppress(OSError):
            mine.unlink()


def succeeded(everything: list[Path], uid: int, groups: list[int]) -> bool:
    """Whether another user has changed anything: in a child, as that user."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            status = 0
            for attack in attacks(everything):
                with suppress(OSError):
                    attack()
                    status = 1
                    break
        except BaseException:  # noqa: BLE001  the child must not go on as the test
            traceback.print_exc()
            status = 99
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(ended)
    assert status in {0, 1}, status
    return status == 1


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(ELEMENTS, max_size=5), FILES)
def test_without_a_fault_nobody_can_change_it(elements: list[Element], file: Element) -> None:
    """Whatever the chain of directories and links, their owners, modes and ACLs."""
    with open_tree() as tree:
        path, everything = build(tree, elements, file)
        with walk(str(path), {0}) as walked:
            accepted = not walked.faults
            assert walked.status is not None
            assert os.path.samestat(walked.status, path.stat())
        event("accepted" if accepted else "refused")
        if accepted:
            assert not succeeded(everything, ALICE, ATTACKERS_GROUPS)
            assert path.read_text() == "root's words"


CLEAN = Element("absolute", 0, 0, 0, 0, 0o755, None)


@pytest.mark.parametrize(
    "bad",
    [
        CLEAN._replace(owner=ALICE),
        CLEAN._replace(mode=0o777),
        CLEAN._replace(mode=0o775),
        CLEAN._replace(mode=0o775, group=BOB),
        CLEAN._replace(acl=acl((USER, 7, ALICE), other=5)),
        CLEAN._replace(acl=acl((GROUP, 7, BOB), other=5)),
        CLEAN._replace(owner=ALICE, mode=0o1755),
    ],
)
def test_the_oracle_can_attack(bad: Element) -> None:
    """Each kind of fault is one that the same attempts turn into a change: the oracle is not blind."""
    with open_tree() as tree:
        path, everything = build(tree, [CLEAN, bad, CLEAN], CLEAN._replace(mode=0o644))
        with walk(str(path), {0}) as walked:
            assert walked.faults
        assert succeeded(everything, ALICE, ATTACKERS_GROUPS)


def test_a_clean_chain_is_accepted() -> None:
    """Links of both kinds and a sticky directory that everybody may write are no fault by themselves."""
    chain = [CLEAN, CLEAN._replace(mode=0o1777), CLEAN._replace(link="relative", place=2), CLEAN._replace(link="")]
    with open_tree() as tree:
        path, everything = build(tree, chain, CLEAN._replace(mode=0o644))
        with walk(str(path), {0}) as walked:
            assert walked.faults == []
        assert not succeeded(everything, ALICE, ATTACKERS_GROUPS)

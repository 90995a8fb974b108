"""ACLs are read as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.remedies.files.path_walk import AclWriters, parse_acl, read_acl
from tests.alerts.remedies.trees import GROUP, USER, acl, open_tree, set_acl

PERMISSIONS = st.integers(0, 7)
NAMED = st.dictionaries(st.tuples(st.sampled_from([USER, GROUP]), st.integers(1, 2**32 - 2)), PERMISSIONS, max_size=6)


@given(NAMED, PERMISSIONS, PERMISSIONS)
def test_who_may_write_survives_the_mask(named: dict[tuple[int, int], int], group: int, mask: int) -> None:
    """A named user or group, or the owning group, writes by its own entry and the mask together."""
    value = acl(*((tag, permissions, identifier) for (tag, identifier), permissions in named.items()),
                group=group, mask=mask)  # fmt: skip

    writers = {key for key, permissions in named.items() if permissions & mask & 2}
    assert parse_acl(value) == AclWriters(
        users=frozenset(identifier for tag, identifier in writers if tag == USER),
        groups=frozenset(identifier for tag, identifier in writers if tag == GROUP),
        owning_group=bool(group & mask & 2),
    )


@given(st.binary(max_size=64))
def test_no_bytes_break_it(value: bytes) -> None:
    """What is no ACL is a ValueError, and nothing else."""
    with suppress(ValueError):
        assert isinstance(parse_acl(value), AclWriters)


@pytest.mark.parametrize(
    "value", [b"", b"\x02\0\0", b"\x01\0\0\0", acl()[:-1], acl() + b"\x40\0\x07\0\xff\xff\xff\xff"]
)
def test_a_broken_acl_is_told(value: bytes) -> None:
    """Too short, of another version, cut off, or with an entry of an unknown type: never read as 'nobody'."""
    with pytest.raises(ValueError, match="an ACL"):
        parse_acl(value)


@pytest.mark.needs("setfacl")
def test_the_acl_of_setfacl() -> None:
    """The oracle: what setfacl(1) sets is what is read, through a descriptor that cannot be read from."""
    with open_tree() as folder:
        set_acl(folder, acl())  # or skip
        file = folder / "file"
        file.write_text("")
        descriptor = os.open(file, os.O_PATH)
        try:
            assert read_acl(descriptor) is None
            subprocess.run(["setfacl", "-m", "u:7:rw,u:8:r,g:9:rw,g::r", str(file)], check=True)
            assert read_acl(descriptor) == AclWriters(frozenset({7}), frozenset({9}), owning_group=False)
            subprocess.run(["setfacl", "-m", "m::r", str(file)], check=True)
            assert read_acl(descriptor) == AclWriters(frozenset(), frozenset(), owning_group=False)
        finally:
            os.close(descriptor)

"""The names under which this machine may be asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_exporters.http.hosts import HostNames, host_names, is_loopback_address

HOSTS = """\
127.0.0.1 localhost
127.0.1.1 node7.mgmt.example.org node7  # Debian
10.0.0.8  node8.mgmt.example.org node8
# 10.0.0.9 node7 evil.example.com
0.0.0.0 ads.example.net
"""
RESOLV_CONF = """\
# made by NetworkManager
nameserver 10.0.0.1
search Example.org. svc.cluster.local lan com .
options ndots:5
"""


@pytest.fixture
def names(tmp_path: Path) -> HostNames:
    """The names of a machine with the two files above."""
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "resolv.conf").write_text(RESOLV_CONF)
    return host_names(
        "node7",
        allowed=["GPU7.corp.example.com", "*.pool.example.com"],
        hosts=tmp_path / "hosts",
        resolv_conf=tmp_path / "resolv.conf",
    )


EVERYWHERE = [
    "localhost", "LOCALHOST:9837", "localhost.:9837", "gpu.localhost", "127.0.0.1", "127.0.1.1:1", "127.255.255.254",
    "[::1]", "[::1]:9837", "[0:0:0:0:0:0:0:1]:9837", "[::ffff:127.0.0.1]", "node7", "NODE7:9837",
    "node7.mgmt.example.org",    "node7.mgmt.example.org.:9837", "gpu7.corp.example.com",
    "a.pool.example.com:9837", "b.a.pool.example.com",
    "localhost:", "localhost:99999",
]  # fmt: skip
"""What may be asked for at every address."""
OPEN_ALONE = [
    "10.0.0.7:9837", "8.8.8.8", "[2001:db8::7]:9837", "0.0.0.0:9837", "[::]", "node8", "gpu_agent:9837",
    "node7.example.org:9837", "other.example.org", "gpuagent.monitoring.svc.cluster.local:9837", "node7.lan",
]  # fmt: skip
"""What may be asked for at an address that is not loopback: no page of the internet has such an origin."""
NOWHERE = [
    "", " ", "evil.com", "localhost.evil.com", "127.0.0.1.nip.io", "127.0.0.1.evil.com:9837", "node7.evil.com",
    "node7.mgmt.example.org.evil.com", "example.org.evil.com", "evilexample.org", "example.org", "pool.example.com",
    "evilpool.example.com", "corp.example.com", "evil.node7", "node7.com", "evil.com:9837", "evil.com.",
    "evil.example.com", "ads.example.net", "svc.cluster.local.evil.com",
    "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1.", "127.0.0.256", "1.2.3.4.5",
    "localhost@evil.com", "evil.com@localhost", "user:pw@localhost", "localhost#.evil.com", "localhost/", "local host",
    "localhost,evil.com", "localhost:9837:9837", "localhost:x", "localhost:-1", "localhost..", ".localhost", "a..lan",
    "[::1", "::1", "::1]", "[::1]x", "[::1]:x", "[evil.com]", "[127.0.0.1]", "[::1%25lo]", "[]", "[localhost]",
    "localhost\x00", "localhost\n", "l\u043ecalhost", "*", "*.pool.example.com", "http://localhost", "\u24dbocalhost",
]  # fmt: skip
"""What nobody may ask for: names of strangers, and forms that no client of ours sends."""


@pytest.mark.parametrize("host", EVERYWHERE)
def test_own_names(names: HostNames, host: str) -> None:
    """The machine's names and addresses, and those of the configuration, in every spelling."""
    assert names.allow(host, loopback=True)
    assert names.allow(host, loopback=False)


@pytest.mark.parametrize("host", OPEN_ALONE)
def test_names_that_no_stranger_has(names: HostNames, host: str) -> None:
    """On an open address any IP address, short name or name of a searched domain does; on loopback none of them."""
    assert names.allow(host, loopback=False)
    assert not names.allow(host, loopback=True)


@pytest.mark.parametrize("host", NOWHERE)
def test_names_of_strangers(names: HostNames, host: str) -> None:
    """Somebody else's names, and what is no host at all, are refused at every address."""
    assert not names.allow(host, loopback=True)
    assert not names.allow(host, loopback=False)


@given(st.text(st.sampled_from("evil.com:@[]%0127x"), max_size=30), st.booleans())
def test_nothing_below_a_strangers_domain(prefix: str, loopback: bool) -> None:
    """Whatever stands before a stranger's domain, it is the stranger's."""
    names = HostNames(frozenset({"localhost", "node7", "com"}), frozenset({"example.org"}))

    assert not names.allow(f"{prefix}.evil.com", loopback=loopback)


@given(st.text(max_size=40), st.booleans())
def test_any_text_is_judged(host: str, loopback: bool) -> None:
    """No header makes the check fail, and what is allowed has neither user nor path in it."""
    names = HostNames(frozenset({"localhost"}))

    if names.allow(host, loopback=loopback):
        assert not set(host) & set("@/\\#? ,%")


def test_files_that_are_missing(tmp_path: Path) -> None:
    """Without the two files the machine still has its own name."""
    names = host_names("node7.example.org", hosts=tmp_path / "none", resolv_conf=tmp_path / "none")

    assert names.own == {"localhost", "node7", "node7.example.org"}
    assert not names.domains


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("::ffff:10.0.0.7", False),
        ("2001:db8::7", False),
        ("", True),
        ("nonsense", True),
    ],
)
def test_what_is_not_known_to_be_open_is_loopback(address: str, loopback: bool) -> None:
    """A local address that cannot be read is held to the stricter rules."""
    assert is_loopback_address(address) is loopback

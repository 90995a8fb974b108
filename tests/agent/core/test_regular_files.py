"""Reading what somebody else may have put in the place of a file."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError, load_config
from gpuagent.core.regular_files import read_regular_file
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import RuleFileError
from gpuagent_alerts.rules.unit_file import load_unit_tests
from gpuagent_alerts.secret import Misconfigured, Secret
from gpuagent_exporters.http.tls import TlsError, TlsServerConfig
from gpuagent_exporters.http.web_config import WebConfigError, read_file


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


ODD: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "a FIFO"),
    (_device, "a device"),
    (Path.mkdir, "a directory"),
    (_socket, "a socket"),
]
WORDS = "it is {}; only a regular file is read"


def _configuration(path: Path) -> None:
    load_config(path, is_root=True)


def _certificate(path: Path) -> None:
    TlsServerConfig(cert_file=path.name, key_file=path.name).context(path.parent)


READERS: list[tuple[Callable[[Path], object], type[Exception]]] = [
    (_configuration, ConfigError),
    (load_rule_file, RuleFileError),
    (load_unit_tests, RuleFileError),
    (read_file, WebConfigError),
    (_certificate, TlsError),
    (lambda path: Secret("key", file=path).read(), Misconfigured),
]


@pytest.mark.parametrize(("make", "kind"), ODD)
@pytest.mark.parametrize(("read", "fault"), READERS)
def test_whoever_reads_a_file_is_told_what_lies_there(
    tmp_path: Path, make: Callable[[Path], object], kind: str, read: Callable[[Path], object], fault: type[Exception]
) -> None:
    """No reader of a file that is configured waits for a FIFO or reads a device; the fault says what it is."""
    make(tmp_path / "odd")
    with pytest.raises(fault, match=WORDS.format(kind)):
        read(tmp_path / "odd")


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    """One byte beyond the limit tells that there is more; a file at the limit is whole."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 3_000_000)
    assert read_regular_file(file, 2_999_999) == b"x" * 3_000_000
    assert read_regular_file(file, 7) == b"x" * 8
    assert read_regular_file(file, 3_000_000) == b"x" * 3_000_000


def test_a_link_is_followed_unless_told_otherwise(tmp_path: Path) -> None:
    """Administrators link their configuration; the agent's own state is never a link."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular_file(tmp_path / "link", 10) == b"text"
    with pytest.raises(OSError, match="Too many levels"):
        read_regular_file(tmp_path / "link", 10, follow_links=False)


def test_the_fault_reaches_another_process_whole(tmp_path: Path) -> None:
    """The child that parses a configuration is told why there is none."""
    os.mkfifo(tmp_path / "odd")
    with pytest.raises(OSError, match="it is a FIFO") as caught:
        read_regular_file(tmp_path / "odd", 10)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.strerror, again.filename) == (caught.value.strerror, str(tmp_path / "odd"))

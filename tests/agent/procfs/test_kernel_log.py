"""The kernel's log, as far as it tells of GPUs that have fallen off the bus."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.kernel_log import KMSG, FallenGpus, KernelLog, pci_address
from tests.fakes.nobody import run_as_nobody

GPU = (0, 0x3B, 0)
SPLIT = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@contextmanager
def kernel() -> Iterator[tuple[KernelLog, socket.socket]]:
    """A log in which the test is the kernel: one record for each read, as /dev/kmsg has it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    log = KernelLog(os.dup(ours.fileno()))
    ours.close()
    try:
        yield log, theirs
    finally:
        log.close()
        theirs.close()


def record(text: str, number: int = 1) -> bytes:
    """As the kernel writes it, with a dictionary behind."""
    return f"4,{number},123456789,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:99:00.0\n".encode()


@pytest.mark.parametrize(
    "lines",
    [
        SPLIT,
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",),
        (SPLIT[0], "usb 1-1: new device", *SPLIT[1:]),
        ("NVRM: GPU 00000000:3B:00.0: GPU has fallen off the bus.",),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=0000:99:00.0, GPU has fallen off the bus.",),
        ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus.",),
        (
            "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 1:2)",
            "NVRM: installed in this system has fallen off the bus and",
        ),
        (SPLIT[0], *["NVRM: The NVIDI[7]: segfault at 0 in 0000:99:00.0[0+1]"] * 9, *SPLIT[1:]),
    ],
    ids=["split", "plain", "xid", "interrupted", "long", "name", "old", "two", "flooded"],
)
def test_however_it_is_told(lines: tuple[str, ...]) -> None:
    """GPU-03: on one line or three, with an Xid number or without, with other lines in between: this GPU, once."""
    gpus = FallenGpus()
    assert [found for line in lines if (found := gpus.feed(line)) is not None] == [GPU]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=fallen off the bus, Ch 0",
        "NVRM: Xid (PCI:0000:3b:00): 790, pid=7, GPU has fallen off the bus",
        "app: NVRM: GPU 0000:3b:00.0 has fallen off the bus",
        "",
    ],
)
def test_what_is_no_news_of_a_gpu(line: str) -> None:
    """Without an address, of another Xid, and of one who quotes the driver: nothing."""
    assert FallenGpus().feed(line) is None


NAMES = ("NVRM: gpu", "NVRM: GPU 0000:", "NVRM: Xid (PCI:", "NVRM: The NVIDI", "NVRM: fallen of", "NVRM:")
FILES = ("0000:3b:00.0 fallen off the bus", "0000:3b:00): 79, GPU has fallen off the bus.", SPLIT[0])
LINES = ("{name}[81]: segfault at 0 ip 0 sp 0 error 4 in {file}[0+1]", "{name}[8]: {file}", "{name} {file}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("line", LINES)
def test_a_name_that_begins_as_the_driver(name: str, file: str, line: str) -> None:
    """A process has 15 bytes to begin a line of the kernel's with, and a file's name behind: that is no news."""
    gpus = FallenGpus()
    assert gpus.feed(line.format(name=name, file=file)) is None
    assert gpus.feed(line.format(name=name, file=SPLIT[2])) is None


def test_two_gpus_at_once() -> None:
    """GPU-03: each by its own address: a line of the one does not name the other."""
    gpus = FallenGpus()
    lines = [*SPLIT, "NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus."]
    assert [found for line in lines if (found := gpus.feed(line))] == [GPU, (0, 0x5D, 0)]


def test_records_as_they_come() -> None:
    """GPU-03: a record for each line, or one of the driver with line breaks; the dictionary behind it is no text."""
    with kernel() as (log, writer):
        assert log.fallen() == []
        for number, line in enumerate(SPLIT):
            writer.send(record(line, number))
        assert log.fallen() == [GPU]
        writer.send(record("\\x0a".join(SPLIT)))
        writer.send(b"garbage")
        assert log.fallen() == [GPU]
        assert log.fallen() == []


@pytest.mark.parametrize(
    "text",
    [
        "x\\x0aNVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.[812]: segfault at 0 ip 0 sp 0 error 4",
        "traps: x\\x0aNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\\x0a[812] general protection fault",
        "\\x0aNVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        " NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    ],
    ids=["segfault", "trap", "first", "space"],
)
def test_a_name_with_line_breaks_is_no_line_of_the_driver(text: str) -> None:
    """Users name the programs whose crash the kernel reports: what follows an escaped line break is theirs."""
    with kernel() as (log, writer):
        writer.send(record(text))
        assert log.fallen() == []


def test_a_program_is_not_the_kernel() -> None:
    """What root writes to /dev/kmsg has another facility, whatever it says."""
    with kernel() as (log, writer):
        writer.send(record("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.").replace(b"4,", b"12,", 1))
        assert log.fallen() == []


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    """Silent, without an error: NVML tells most of it."""
    log = KernelLog.open(tmp_path / "none")
    assert log.fallen() == []
    log.close()


RESTRICT = Path("/proc/sys/kernel/dmesg_restrict")
OPENS = "from gpuagent.procfs.kernel_log import KernelLog; print(KernelLog.open()._descriptor is not None)"


@pytest.mark.parametrize(("right", "opens"), [(["--inh-caps=+syslog", "--ambient-caps=+syslog"], True), ([], False)])
def test_the_right_that_it_takes(right: list[str], opens: bool) -> None:
    """The kernel's own log, as a user that is nobody: with CAP_SYSLOG, as kernel-log.conf gives it, and without."""
    if os.geteuid() != 0 or not KMSG.exists() or RESTRICT.read_text().strip() != "1":
        pytest.skip("needs root, /dev/kmsg and kernel.dmesg_restrict=1")
    log = KernelLog.open()
    readable = log._descriptor is not None
    log.close()
    if not readable:
        pytest.skip("/dev/kmsg may not be read here at all")
    done = run_as_nobody(OPENS, rights=right)
    assert (done.stdout.strip(), done.stderr) == (str(opens), "")


def test_a_log_that_ends() -> None:
    """Whatever happens to it, the agent goes on."""
    with kernel() as (log, writer):
        writer.close()
        assert log.fallen() == []
        assert log.fallen() == []


@given(st.lists(st.text(max_size=60)))
def test_whatever_is_in_it(lines: list[str]) -> None:
    """Anybody may write to the log: no line is an error."""
    gpus = FallenGpus()
    for line in lines:
        gpus.feed(f"NVRM: {line}")


def test_addresses() -> None:
    """As NVML writes them, and the kernel."""
    assert pci_address("00000000:3B:00.0") == pci_address("0000:3b:00") == GPU
    assert pci_address("00010000:01:00.0") == (0x10000, 1, 0)
    assert pci_address("10de:2330") is None

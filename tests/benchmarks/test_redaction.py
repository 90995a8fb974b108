"""What the dearest command lines cost: a local user writes them, and the loop reads one for each process."""

from __future__ import annotations

import time

import pytest

from gpuagent.procfs.redact import Redactor
from tests.exhaustive import usually

REPEATED = (
    '"', "'", "\"'", "'\"'\"'", "\\", '\\"', "=", ":", "://", "://a@", "@", "--password ", "--password=",
    "--password\0x\0", "key", "key.", 'key"', "passw", "aaa:", "aaa:key",
    "a ", "\ta", '"a" ', 'a"b"', "\0x", "eyJ.", "hf_abcdefghijkl,",
    "AKIA", '{"a":"b"},', "token ", "tokens=1 ", "\u00e9", "\U0001f600", "\x01", "key" + "a" * 61,
)  # fmt: skip
BEFORE = ("", '"', "'\"", "--auth ", "sh\0-c\0")
_ROUNDS = 7


def seconds(redactor: Redactor, raw: bytes) -> float:
    """Processor time of this thread for one command line, the least of some: others use the machine too."""
    times = []
    for _ in range(_ROUNDS):
        before = time.thread_time()
        redactor.command(raw)
        times.append(time.thread_time() - before)
    return min(times)


@pytest.mark.parametrize("repeated", REPEATED)
@pytest.mark.parametrize("before", usually(BEFORE, ""))
def test_four_times_the_length_costs_no_more_than_that(before: str, repeated: str) -> None:
    """PROC-07: 4 KiB beside 1 KiB of the same: four times as much, where sixteen times would be a square."""
    text = (before + repeated * 4096).encode()
    redactor = Redactor()

    assert seconds(redactor, text[:4096]) < 9 * seconds(redactor, text[:1024]) + 100e-6

"""Xids, by what NVIDIA's catalog says to do about them."""

from __future__ import annotations

from gpuagent.core.xids import LOOK, REPAIR_XIDS, Severity, explain_xid

RESET = {46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
NVLINK = {74, *range(144, 151)}
IGNORED = {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
LEFT_TO_THE_PROGRAM = {
    8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89,
    *range(96, 106), *range(126, 136), 139,
}  # fmt: skip


def of(severity: Severity) -> set[int]:
    """Codes that are so grave."""
    return {code for code in range(1000) if explain_xid(code).severity is severity}


def test_what_takes_a_repair_is_critical() -> None:
    """ALERT-01: a reset, a reboot or new cables, and nothing else; time does not end it."""
    assert of(Severity.CRITICAL) == REPAIR_XIDS == RESET | NVLINK | {79, 151}


def test_what_nobody_has_to_act_on_is_not_told() -> None:
    """ALERT-03: what NVIDIA says to ignore, what another code tells, and what the program's restart mends."""
    assert of(Severity.INFO) == IGNORED | LEFT_TO_THE_PROGRAM | {45, 154, 171, 172}


def test_a_code_that_the_catalog_does_not_have() -> None:
    """ALERT-01: is told as that, and not as harmless."""
    unknown = explain_xid(999)

    assert unknown.meaning == "a code that NVIDIA's catalog does not have"
    assert unknown.action is LOOK
    assert unknown.severity is Severity.WARNING

"""The driver's advice on a faulty GPU in words: NVML field 230, nvmlDeviceGpuRecoveryAction_t of nvml.h."""

from __future__ import annotations

from typing import NamedTuple


class RecoveryAction(NamedTuple):
    """One value of the field."""

    name: str
    """For JSON."""
    text: str
    """As in "the driver asks to ..."."""
    advice: str
    """What to do; `{gpu}` stands for the index of the GPU."""


RECOVERY_ACTIONS = {
    0: RecoveryAction("none", "do nothing", ""),
    1: RecoveryAction("gpu_reset", "reset the GPU", "Drain the node and reset the GPU: nvidia-smi -r -i {gpu}."),
    2: RecoveryAction("node_reboot", "reboot the node", "Drain and reboot the node."),
    3: RecoveryAction("drain_p2p", "drain peer-to-peer work", "Move multi-GPU jobs elsewhere."),
    4: RecoveryAction(
        "drain_and_reset",
        "drain and reset the GPU",
        "Let running work end, start none, then reset the GPU: nvidia-smi -r -i {gpu}.",
    ),
    5: RecoveryAction("recover_imex", "recover the IMEX domain", "Restart nvidia-imex on its nodes."),
    6: RecoveryAction("bus_reset", "reset the GPU's bus", "Drain the node and reboot it."),
    7: RecoveryAction("system_reboot", "reboot the whole system", "Drain and power-cycle the node."),
}


def recovery_action(value: int) -> RecoveryAction:
    """Return what a value means; one that is not in the list is named by its number."""
    known = RECOVERY_ACTIONS.get(value)
    if known is not None:
        return known
    return RecoveryAction(f"unknown_{value}", f"take recovery action {value}", "Look it up in NVIDIA's nvml.h.")

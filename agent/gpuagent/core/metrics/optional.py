"""Families that `/metrics` leaves out unless the configuration asks for them: many series, of use to few.

Rules, remedies and the leak detector see every family, always.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

OPTIONAL_FAMILIES = MappingProxyType(
    {
        "nvlink_links": ("gpuagent_gpu_nvlink_active",),
        "mig_traffic": (
            "gpuagent_mig_profile_pcie_transmit_bytes_per_second",
            "gpuagent_mig_profile_pcie_receive_bytes_per_second",
            "gpuagent_mig_profile_nvlink_transmit_bytes_per_second",
            "gpuagent_mig_profile_nvlink_receive_bytes_per_second",
        ),
    }
)
"""Names of families by the key of the configuration's section `metrics` that exports them."""

SWITCH_OF = MappingProxyType({name: switch for switch, names in OPTIONAL_FAMILIES.items() for name in names})
"""The key that exports a family, by the family's name."""


def left_out(switched_on: Collection[str]) -> frozenset[str]:
    """Return the names of the families that are not exported while these keys are on."""
    return frozenset(name for name, switch in SWITCH_OF.items() if switch not in switched_on)

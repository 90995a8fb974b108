"""Which GPUs there should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuagent.collector.inventory import Inventory, count_pci_gpus, find_conflicts
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState
from gpuagent.driver.backend import Collected

A = GpuIdentity(index=0, uuid="GPU-a", name="H100", pci_bus_id="00000000:18:00.0")
B = GpuIdentity(index=1, uuid="GPU-b", name="H100", pci_bus_id="00000000:20:00.0")
NVIDIA, DISPLAY = "0x10de", "0x030200"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the list is kept."""
    return tmp_path / "gpus.json"


def test_what_was_seen_is_known_after_a_restart(path: Path) -> None:
    """GPU-02: by UUID, with index, name and bus id."""
    Inventory(path, "boot").observe([B, A])

    assert Inventory(path, "boot").known == (A, B)
    assert Inventory(path, "boot").at(1) == B
    assert Inventory(path, "boot").at(2) is None


def test_a_new_boot_starts_anew(path: Path) -> None:
    """GPU-02: hardware may change while a machine is off."""
    Inventory(path, "boot").observe([A])

    assert Inventory(path, "another").known == ()


def lost_at(index: int) -> Collected:
    """Answer of a GPU that has not told its name."""
    return Collected(GpuReading(GpuIdentity(index, ""), GpuState.LOST))


def test_a_gpu_that_is_lost_after_a_reboot_has_its_name(path: Path) -> None:
    """GPU-01: UUID, name and address come from an earlier boot, also over two reboots without it."""
    Inventory(path, "boot").observe([A, B])
    Inventory(path, "second").observe([A])
    inventory = Inventory(path, "third")
    inventory.observe([A])
    answers = inventory.identify([Collected(GpuReading(A, GpuState.OK)), lost_at(1), lost_at(2)])

    assert [answer.reading.identity for answer in answers] == [A, B, GpuIdentity(2, "")]
    assert Inventory(path, "third").known == (A,)


@pytest.mark.parametrize("restarted", [False, True], ids=["the same agent", "started again in that boot"])
def test_a_gpu_that_was_lost_before_a_reboot_should_be_there(path: Path, *, restarted: bool) -> None:
    """GPU-01: until another one answers at its PCI address; one that nobody knows is not expected."""
    Inventory(path, "boot").observe([A, B])
    inventory = Inventory(path, "another")
    assert inventory.expect([B.uuid, "GPU-unknown"]) == {B.uuid}
    inventory.observe([A])
    assert Inventory(path, "another").known == (A, B)
    if restarted:
        inventory = Inventory(path, "another")
        assert inventory.expect([B.uuid]) == {B.uuid}
    new = GpuIdentity(index=1, uuid="GPU-new", name="H100", pci_bus_id=B.pci_bus_id)
    inventory.observe([A, new])
    assert [gpu.uuid for gpu in inventory.known] == [A.uuid, "GPU-new"]
    assert [gpu.uuid for gpu in Inventory(path, "another").known] == [A.uuid, "GPU-new"]


def test_a_gpu_that_came_back_after_a_reboot_is_not_replaced_by_its_address(path: Path) -> None:
    """GPU-01: once it was seen in this boot, another one at its address does not end that it should be there."""
    Inventory(path, "boot").observe([A, B])
    Inventory(path, "another").expect([B.uuid])
    Inventory(path, "another").observe([A, B])
    inventory = Inventory(path, "another")
    inventory.observe([A, GpuIdentity(index=1, uuid="GPU-new", name="H100", pci_bus_id=B.pci_bus_id)])
    assert {gpu.uuid for gpu in inventory.known} == {A.uuid, B.uuid, "GPU-new"}


def test_a_gpu_that_answers_elsewhere_is_not_the_lost_one(path: Path) -> None:
    """GPU-01: what has moved to another index gives its name to nobody."""
    Inventory(path, "boot").observe([A, B])
    inventory = Inventory(path, "another")
    moved = GpuIdentity(index=0, uuid=B.uuid, name="H100", pci_bus_id=B.pci_bus_id)
    (_, lost) = inventory.identify([Collected(GpuReading(moved, GpuState.OK)), lost_at(1)])

    assert lost.reading.identity == GpuIdentity(1, "")


def test_a_gpu_that_moved_is_known_by_its_last_index(path: Path) -> None:
    """GPU-02: the UUID is the identity; the index may change."""
    inventory = Inventory(path, "boot")
    inventory.observe([A, B])
    moved = GpuIdentity(index=0, uuid="GPU-b", name="H100", pci_bus_id="00000000:20:00.0")
    inventory.observe([moved])

    assert set(inventory.known) == {A, moved}


def test_of_two_gpus_with_one_uuid_the_first_is_noted(path: Path) -> None:
    """GPU-13: the list does not change from one tick to the next, and is not written each second."""
    twin = GpuIdentity(index=1, uuid="GPU-a", name="H100", pci_bus_id="00000000:20:00.0")
    inventory = Inventory(path, "boot")
    inventory.observe([A, twin])
    path.unlink()
    inventory.observe([A, twin])

    assert inventory.known == (A,)
    assert not path.exists()


def test_the_address_of_a_gpu(path: Path) -> None:
    """GPU-13: by its UUID, also after a restart; one that was never seen has none."""
    Inventory(path, "boot").observe([A])
    inventory = Inventory(path, "boot")

    assert (inventory.address_of(A.uuid), inventory.address_of(B.uuid)) == (A.pci_bus_id, "")


def test_a_gpu_without_uuid_is_not_noted(path: Path) -> None:
    """One that was never opened has no identity yet."""
    inventory = Inventory(path, "boot")
    inventory.observe([GpuIdentity(index=0, uuid="")])

    assert inventory.known == ()
    assert not path.exists()


def test_nothing_is_written_while_nothing_changes(path: Path) -> None:
    """A tick a second must not write a file a second."""
    inventory = Inventory(path, "boot")
    inventory.observe([A])
    path.unlink()
    inventory.observe([A])

    assert not path.exists()


@given(garbage=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@example(garbage=b"[" * 100_000)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_garbage_is_started_anew(path: Path, garbage: bytes) -> None:
    """A corrupt file never stops the agent, and is replaced by a good one."""
    path.write_bytes(garbage)
    inventory = Inventory(path, "boot")
    inventory.observe([A])

    assert Inventory(path, "boot").known == (A,)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"schema": 1},
        {"schema": 1, "boot_id": "boot", "gpus": 5},
        {"schema": 1, "boot_id": "boot", "gpus": [None]},
        {"schema": 1, "boot_id": "boot", "gpus": [{"index": float("inf"), "uuid": "x", "name": "", "pci_bus_id": ""}]},
        {"schema": 1, "boot_id": "boot", "gpus": [{"index": 0}]},
    ],
    ids=str,
)
def test_json_of_another_form(path: Path, document: object, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is JSON but not ours is told and started anew."""
    path.write_text(json.dumps(document))

    assert Inventory(path, "boot").known == ()
    assert len(caplog.records) == 1


def test_another_schema_is_left_alone(path: Path) -> None:
    """A newer agent's list is not misread."""
    path.write_text(json.dumps({"schema": 2, "boot_id": "boot", "gpus": [{"index": 0, "uuid": "GPU-x"}]}))

    assert Inventory(path, "boot").known == ()


def test_a_directory_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Costs the memory over restarts, and nothing else."""
    inventory = Inventory(tmp_path / "missing" / "gpus.json", "boot")
    inventory.observe([A])

    assert inventory.known == (A,)
    assert "cannot be saved" in caplog.text


def pci_device(root: Path, name: str, vendor: str = NVIDIA, kind: str = DISPLAY, driver: str = "") -> None:
    """A device as sysfs shows it."""
    device = root / name
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver:
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    """GPU-02: display devices of NVIDIA that no other driver owns; audio, bridges and passed-through GPUs are none."""
    pci_device(tmp_path, "0000:18:00.0", driver="nvidia")
    pci_device(tmp_path, "0000:20:00.0")
    pci_device(tmp_path, "0000:28:00.0", kind="0x030000")
    pci_device(tmp_path, "0000:30:00.0", driver="vfio-pci")
    pci_device(tmp_path, "0000:18:00.1", kind="0x040300")
    pci_device(tmp_path, "0000:00:00.0", vendor="0x8086")
    (tmp_path / "0000:38:00.0").mkdir()

    assert count_pci_gpus(tmp_path) == 3


def test_no_bus_to_look_at(tmp_path: Path) -> None:
    """Unknown is not zero."""
    assert count_pci_gpus(tmp_path / "nothing") is None


def test_who_moved_up_is_no_twin() -> None:
    """GPU-04: a GPU that has not answered since the others moved up is not said to have their UUID now."""
    moved = [GpuIdentity(0, "GPU-b"), GpuIdentity(1, "GPU-b")]
    assert find_conflicts(moved) == dict.fromkeys((0, 1), "GPUs 0 and 1 have the same UUID GPU-b")
    text = "another GPU answers with the UUID GPU-b, which GPU 1 had when it answered last"
    assert find_conflicts(moved, unidentified={1}) == {0: text, 1: text}

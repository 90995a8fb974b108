"""Every fact that a decision to act rests on, who can write it, and what it may do.

The rule: what an unprivileged user can write may keep a process from being acted on, and never cause an act. The policy
(`safeguards/policy.py`) is the one place that decides; this table is what its tests go by. docs/refusals.md shows it
under "Who can write what", and `tests/agent/config/test_remedies_document.py` holds the two together.
`test_provenance.py` holds it against the fields that there are, and against whole policies.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class FactWriter(StrEnum):
    """Who can determine a fact."""

    KERNEL = "the kernel"
    DRIVER = "the NVIDIA driver"
    ROOT = "root, systemd or a container runtime"
    OPERATOR = "the operator"
    """Root's configuration and rules, or a person at the control socket."""
    AGENT = "the agent"
    """Computed of other facts of this table, and no stronger than they are."""
    TARGET = "the process or its user"


class Fact(NamedTuple):
    """A field of `Target`, `Facts`, `Identity`, `Observation` or `RemedyRequest`."""

    field: str
    writer: FactWriter
    use: str
    """What it may do, in words."""


FACTS: Final = (
    Fact("Target.id", FactWriter.KERNEL, "names the process: boot, pid and start time, read while a pidfd holds it"),
    Fact("Target.key", FactWriter.DRIVER, "names the GPU and the number whose memory is counted"),
    Fact("Target.gpu_index", FactWriter.DRIVER, "is compared with `allow.gpus`"),
    Fact("Target.name", FactWriter.TARGET, "withholds: the never-list; a change ends a ladder"),
    Fact("Target.uid", FactWriter.KERNEL, "permits, as the user"),
    Fact("Target.user", FactWriter.ROOT, "permits: `allow.users`, by the uid and root's user database"),
    Fact(
        "Target.command", FactWriter.TARGET, "withholds; with `scope: job` tells ranks from others with the same sign"
    ),
    Fact("Target.cgroup", FactWriter.TARGET, "withholds: a change ends a ladder"),
    Fact("Target.used_bytes", FactWriter.DRIVER, "permits: `min_memory`, the ranking"),
    Fact("Target.kinds", FactWriter.DRIVER, "withholds: clients of MPS"),
    Fact("Target.unit", FactWriter.TARGET, "withholds; permits only where it is among the proven names"),
    Fact("Target.container_id", FactWriter.TARGET, "withholds; permits only where it is among the proven names"),
    Fact("Target.container_runtime", FactWriter.TARGET, "says which runtime may be asked; a name has it in front"),
    Fact("Target.container_name", FactWriter.ROOT, "permits beside a proven id: the runtime or the kubelet tells it"),
    Fact("Target.slurm_job", FactWriter.TARGET, "withholds; makes members only where it is among the proven names"),
    Fact("Target.parent_pid", FactWriter.KERNEL, "tells a rank from children with its environment, daemons from jobs"),
    Fact(
        "Target.process_group", FactWriter.KERNEL, "is shown: who looks like a part of a job, and does not fall with it"
    ),
    Fact(
        "Target.job_signs",
        FactWriter.TARGET,
        "withholds; with `scope: job` joins what shows the same, of one user and container",
    ),
    Fact("Target.sm_ratio", FactWriter.DRIVER, "is shown"),
    Fact(
        "Target.slope_bytes_per_second",
        FactWriter.AGENT,
        "ranks leaks; the driver's and, with a client, the app's figures",
    ),
    Fact("Target.leaking", FactWriter.AGENT, "permits `victim: leaking` where the driver confirms"),
    Fact(
        "Target.evidence", FactWriter.AGENT, "permits: `allocator` is the app's word and needs the driver's beside it"
    ),
    Fact("Target.leak_confirmed", FactWriter.AGENT, "permits: more than one witness, the driver's figures among them"),
    Fact(
        "Target.driver_confirms",
        FactWriter.DRIVER,
        "permits: the driver's own figures of the process rise with the leak",
    ),
    Fact("Target.gpu_pci", FactWriter.DRIVER, "withholds: with the UUID it says which GPU that is"),
    Fact(
        "Target.idle_seconds",
        FactWriter.DRIVER,
        "permits `victim: idle`, and rules on idleness: every reading of that time found 0 % and the same memory",
    ),
    Fact("Target.holder_proven", FactWriter.DRIVER, "permits: the number was not listed before this process was there"),
    Fact("Target.identity", FactWriter.KERNEL, "withholds: what a person was shown is compared when it is held, too"),
    Fact(
        "Target.proven_names",
        FactWriter.ROOT,
        "permits: root owns the cgroups, and the host's managers made their path",
    ),
    Fact("Facts.identity", FactWriter.KERNEL, "withholds: compared before every step"),
    Fact("Facts.state", FactWriter.KERNEL, "withholds: zombies, and all but SIGKILL in uninterruptible sleep"),
    Fact("Facts.threads", FactWriter.KERNEL, "tells a zombie from one whose leader has ended"),
    Fact("Facts.ending", FactWriter.KERNEL, "withholds: none of its threads lives, and its place is unknown"),
    Fact("Facts.parent_pid", FactWriter.KERNEL, "is shown"),
    Fact("Facts.user", FactWriter.ROOT, "withholds: the name of its uid, asked anew while the process is held"),
    Fact("Facts.kernel_thread", FactWriter.KERNEL, "withholds"),
    Fact("Facts.oom_score_adjust", FactWriter.TARGET, "withholds"),
    Fact("Facts.uids", FactWriter.KERNEL, "withholds where they differ: it runs with the rights of more than one user"),
    Fact("Facts.program_names", FactWriter.TARGET, "withholds: the never-list"),
    Fact("Facts.thread_elsewhere", FactWriter.AGENT, "withholds: a thread in another unit, container or job"),
    Fact("Facts.never_listed", FactWriter.AGENT, "withholds: an entry of `never` means it by a link or an argument"),
    Fact(
        "Facts.root_user_namespace", FactWriter.KERNEL, "lets the next in a ranking follow: its user is not its choice"
    ),
    Fact("Facts.own_root", FactWriter.KERNEL, "withholds: a container, or not to be told"),
    Fact("Facts.namespace_pids", FactWriter.KERNEL, "withholds: a container"),
    Fact(
        "Facts.users_container",
        FactWriter.KERNEL,
        "permits with `allow.unnamed_containers`: by root's cgroups, and who made its user namespace",
    ),
    Fact(
        "Facts.ties",
        FactWriter.AGENT,
        "withholds: each that ends, or is hung up, together with it is judged; by /proc and by systemd's word on units."
        " Of those of a unit, `forced` and `shown` permit a bare signal to one that is not its main process",
    ),
    Fact("Facts.ignored_signals", FactWriter.TARGET, "withholds, and shortens a wait"),
    Fact("Facts.caught_signals", FactWriter.TARGET, "withholds, and shortens a wait"),
    Fact("Facts.pending_signals", FactWriter.KERNEL, "is shown"),
    Fact("Facts.wait_channel", FactWriter.KERNEL, "is shown"),
    Fact(
        "Facts.frozen_by",
        FactWriter.KERNEL,
        "withholds all but SIGKILL: a signal would stay pending until it is thawed",
    ),
    Fact("Facts.held_by", FactWriter.KERNEL, "withholds: a signal, SIGKILL too, would end it once it is thawed"),
    Fact(
        "Facts.restored",
        FactWriter.KERNEL,
        "withholds: it was forked and executes nothing since, as what CRIU restores; a name `criu` is anybody's",
    ),
    Fact("Facts.checkpointing", FactWriter.TARGET, "withholds: by the arguments of a program of that name"),
    Fact("Facts.switches", FactWriter.KERNEL, "withholds: it has run since it slept where only SIGKILL could reach it"),
    Fact("Identity.id", FactWriter.KERNEL, "withholds: another process now"),
    Fact("Identity.uid", FactWriter.KERNEL, "withholds: another user now"),
    Fact("Identity.name", FactWriter.TARGET, "withholds"),
    Fact("Identity.command_digest", FactWriter.TARGET, "withholds"),
    Fact("Identity.cgroup", FactWriter.TARGET, "withholds"),
    Fact("Identity.executable", FactWriter.TARGET, "withholds: the never-list, another program now"),
    Fact(
        "Identity.image",
        FactWriter.KERNEL,
        "withholds: another program now. Unchanged, it stands in for a command line that cannot be read",
    ),
    Fact(
        "Identity.proven_names", FactWriter.ROOT, "permits, lets the next follow: read anew while the process is held"
    ),
    Fact("Identity.handle_inode", FactWriter.KERNEL, "withholds: another process now"),
    Fact("Identity.process_group", FactWriter.KERNEL, "withholds: a change ends a ladder"),
    Fact("Identity.uids", FactWriter.KERNEL, "withholds: another user now"),
    Fact("Identity.pid_namespace", FactWriter.KERNEL, "withholds: another process now"),
    Fact("Identity.cgroups", FactWriter.TARGET, "withholds: another place now"),
    Fact("Identity.executable_file", FactWriter.TARGET, "withholds: another program now"),
    Fact("Observation.clock_seconds", FactWriter.AGENT, "permits: the reading began after the process was held"),
    Fact("Observation.condition", FactWriter.AGENT, "permits: root's rule, on figures that were read since"),
    Fact("Observation.reason", FactWriter.AGENT, "is shown"),
    Fact(
        "Observation.target", FactWriter.AGENT, "permits: the driver lists the number, and this process had it before"
    ),
    Fact("Observation.target_listed", FactWriter.DRIVER, "tells whether the memory came back"),
    Fact("Observation.gpu_used_bytes", FactWriter.DRIVER, "tells whether the memory came back"),
    Fact("Observation.gpu_unattributed_bytes", FactWriter.DRIVER, "tells whether the memory came back"),
    Fact("Observation.trusted", FactWriter.DRIVER, "withholds: a driver that shuffles its list"),
    Fact(
        "Observation.act_refusal", FactWriter.DRIVER, "withholds: figures that cannot be true, or whose GPU is in doubt"
    ),
    Fact(
        "Observation.gpu_index_certain",
        FactWriter.DRIVER,
        "withholds: indices of `allow.gpus` while a GPU may be missing or have moved",
    ),
    Fact("Observation.host_pid_namespace", FactWriter.KERNEL, "withholds: the driver's pids are not the agent's"),
    Fact("Observation.relatives", FactWriter.AGENT, "is shown: who holds the memory after the act"),
    Fact("Observation.successors", FactWriter.AGENT, "is shown: who was started in its place"),
    Fact(
        "Observation.members",
        FactWriter.AGENT,
        "are judged each by the same policy; by proven names or by signs of one job",
    ),
    Fact(
        "Observation.apart",
        FactWriter.AGENT,
        "is shown: who does not fall with it, as nothing shows that it is one job",
    ),
    Fact(
        "Observation.everybody",
        FactWriter.DRIVER,
        "withholds: who ends along with the process must be no client of MPS, on `allow.gpus`, and idle where it is",
    ),
    Fact(
        "Observation.act_refusals",
        FactWriter.DRIVER,
        "withholds: who ends along with the process is on a GPU whose figures are in doubt",
    ),
    Fact(
        "Observation.unlisted_gpus",
        FactWriter.DRIVER,
        "withholds: who ends along may be on a GPU of which no list was ever read",
    ),
    Fact("Observation.choice", FactWriter.AGENT, "withholds: the one that was chosen must be the choice still"),
    Fact("Observation.present", FactWriter.DRIVER, "tells who holds the memory after the act"),
    Fact(
        "Observation.resumed",
        FactWriter.DRIVER,
        "withholds: the driver did not list it for a while, as what cuda-checkpoint suspends",
    ),
    Fact("Observation.unified_memory", FactWriter.DRIVER, "permits the step drop_caches, which harms nobody"),
    Fact("Observation.unreadable", FactWriter.AGENT, "is shown: why nobody can see whether the memory came back"),
    Fact("RemedyRequest.alert", FactWriter.AGENT, "names the alert of root's rule"),
    Fact("RemedyRequest.alertname", FactWriter.OPERATOR, "chooses the ladder"),
    Fact("RemedyRequest.expression", FactWriter.OPERATOR, "is shown"),
    Fact("RemedyRequest.value", FactWriter.AGENT, "is shown"),
    Fact("RemedyRequest.labels", FactWriter.AGENT, "choose the ladder; a label `evidence` withholds"),
    Fact("RemedyRequest.asked_by", FactWriter.KERNEL, "is recorded: the peer of the control socket"),
    Fact("RemedyRequest.forced", FactWriter.OPERATOR, "lifts the allow list, and not the never-list"),
    Fact("RemedyRequest.victim", FactWriter.OPERATOR, "chooses where the alert names nobody"),
    Fact("RemedyRequest.passed_over", FactWriter.AGENT, "names those before it that the allow list does not mean"),
    Fact("RemedyRequest.values", FactWriter.AGENT, "is recorded"),
    Fact(
        "RemedyRequest.idle_for_seconds",
        FactWriter.OPERATOR,
        "withholds: the process must have been at rest for so long",
    ),
    Fact(
        "RemedyRequest.about_growth",
        FactWriter.OPERATOR,
        "withholds: the process must leak itself, with the evidence asked for",
    ),
    Fact("RemedyRequest.shown", FactWriter.OPERATOR, "with `forced`, permits that these end together with the process"),
    Fact(
        "RemedyRequest.together",
        FactWriter.OPERATOR,
        "withholds: each of these counts as ending when it is judged whom the end takes along",
    ),
)


def written_by(writer: FactWriter) -> frozenset[str]:
    """Return the fields that this one can determine."""
    return frozenset(fact.field for fact in FACTS if fact.writer is writer)

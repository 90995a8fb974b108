"""Evidence, traces and feedback: see `gpuagent.leaks.evidence` and `.commands`, which make the documents."""

from __future__ import annotations

from gpuagent.growth import Evidence, GrowthState, Verdict
from gpuagent_exporters.api.leak_routes import LABELS
from gpuagent_exporters.openapi.schema import (
    Schema,
    flag,
    integer,
    listing,
    mapping,
    number,
    one_of,
    record,
    ref,
    text,
)

_VERSION = integer("Changes when a key goes or changes its meaning, not when one is added.", const=1)
_SENSITIVITIES = ("off", "strict", "balanced", "sensitive")
_WHO: dict[str, Schema] = {
    "pid": integer("As the host sees it."),
    "process": text("Its name."),
    "user": text(),
    "unit": text("systemd's."),
    "container_id": text(),
    "app": text("The name that an embedded client gave its app."),
    "gpu": integer("NVML's index; -1 where the GPU is gone."),
    "gpu_uuid": text(),
    "gpu_instance_id": integer("Of MIG; -1 without."),
    "running": flag("It was seen at the last reading."),
}
_VERDICT: dict[str, Schema] = {
    "verdict": one_of(Verdict, "What the detector says, or said last.", null=True),
    "evidence": one_of(Evidence, "The strictest standard that the leak meets.", null=True),
}
_CELL: Schema = {"type": ["integer", "null"]}
_FEEDBACK: dict[str, Schema] = {
    "schema": _VERSION,
    "id": text("Of the entry."),
    "time_seconds": number("Unix time at which it was told."),
    "label": one_of(LABELS, "`false`: the process did not leak; `true`: it did."),
    "note": text("In the words of whoever told it."),
    "by": text("The user who told it, by the kernel's word."),
    "node": text(),
    "simulated": flag(),
    **_WHO,
    **_VERDICT,
    "sensitivity": one_of(_SENSITIVITIES, "By which it was judged then."),
}

LEAK_SCHEMAS: dict[str, Schema] = {
    "LeakEvidence": record(
        "Why the detector says what it says of a process on a GPU, and why there is no verdict.",
        schema=_VERSION,
        time_seconds=number("Unix time of this answer."),
        **_WHO,
        judged_by=record(
            "The sensitivity that holds for it, and why.",
            sensitivity=one_of(_SENSITIVITIES),
            node_sensitivity=one_of(_SENSITIVITIES[1:], "`leaks.sensitivity`."),
            override=integer("The place in `leaks.overrides` of the override that holds; null: none does.", null=True),
            match=mapping(text(), "What that override matches."),
        ),
        **_VERDICT,
        growth_state=one_of(GrowthState, "Of what is growing or leaking: whether it rises now.", null=True),
        growth_bytes_per_second=number("Of the baseline.", null=True),
        growth_since_seconds=number("Unix time at which the growth began.", null=True),
        exhaustion_seconds=number("Until the memory is full.", null=True),
        reasons=listing(text(), "As the alert has them."),
        memory_total_bytes=integer("Of the GPU, or of the MIG instance."),
        memory_free_bytes=integer(null=True),
        watched_seconds=number("How far back `points` go."),
        points=listing(
            record(
                "The lowest readings of a stretch of time.",
                time_seconds=number("Unix time of its beginning."),
                used_bytes=integer(null=True),
                baseline_bytes=integer("The lowest from then until now: what was never given back.", null=True),
                free_bytes=integer("At its end; null where that is not known any more.", null=True),
                allocated_bytes=integer("Of an app that tells.", null=True),
            ),
            "Oldest first, of equal length; a stretch without a reading is left out.",
        ),
        standards=listing(
            record(
                "One standard of evidence.",
                sensitivity=text("Which one; `suspected` is that of the verdict `growing`."),
                signal=text("What it looks at: memory, tensors, memory outside the allocator."),
                alarm=flag("It is met."),
                alarm_seconds=number("Unix time since which.", null=True),
                nearest=text("What the window that came nearest to an alarm shows, in words."),
                windows=listing(
                    record(
                        "A window of time that ends now; of an alarm, the one on which it was raised.",
                        seconds=number(),
                        growth_bytes=integer("Of the baseline."),
                        needed_bytes=integer("Growth that counts, in proportion to what is free."),
                        counts=flag("The growth is large enough to be judged."),
                        finding=text("In words."),
                    )
                ),
            )
        ),
        why=listing(text(), "In sentences: what the verdict rests on, or what another would need."),
    ),
    "LeakTraces": record(
        "The agent's own history of processes, as `gpuagent history export` writes it.",
        schema=_VERSION,
        time_seconds=number(),
        node=text(),
        simulated=flag(),
        left_out=integer("Processes that are not in this answer: it has the largest."),
        traces=listing(record("One process.", **_WHO, trace=ref("LeakTrace"))),
    ),
    "LeakTrace": record(
        "What the detector was shown, in blocks. A replay of it comes to the same verdicts.",
        schema=_VERSION,
        process=text("As a trace names it."),
        total_bytes=integer("Memory of the GPU."),
        started_seconds=number("Unix time at which the process started.", null=True),
        origin_seconds=number("Unix time of block 0."),
        block_seconds=integer("Of one block."),
        page_bytes=integer("Of one page."),
        columns=listing(text(), "Of each run: first and last block, then pages."),
        runs=listing(listing(_CELL), "Stretches of blocks that were alike, oldest first; null is no reading."),
    ),
    "LeakFeedback": record(
        "What people have said of verdicts. The oldest go when there is no room.",
        schema=_VERSION,
        most_entries=integer(),
        most_bytes=integer("Of all of them on disk."),
        feedback=listing(record("One entry.", **_FEEDBACK), "Oldest first."),
    ),
    "LeakFeedbackAdded": record(
        "It is kept.",
        **_FEEDBACK,
        evicted=listing(text(), "Ids of the oldest entries, which made room for it."),
    ),
    "LeakFeedbackEntry": record("One entry with its history.", **_FEEDBACK, trace=ref("LeakTrace")),
}

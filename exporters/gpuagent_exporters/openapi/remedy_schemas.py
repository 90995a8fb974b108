"""What was done to give memory back: see `gpuagent.acting` and the audit log, which make the documents."""

from __future__ import annotations

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
    without,
)
from gpuagent_exporters.openapi.status_schemas import STATUS_SCHEMAS, TIMES, VERSION

RESULTS = (
    "released", "resolved", "still_listed", "held_by_other", "unaccounted", "unkillable", "no_effect", "refused",
    "failed", "dry_run", "interrupted", "exited",
)  # fmt: skip
"""How a run may end, in the order of docs/remedies.md."""

_HIDDEN = (
    "labels", "expression", "asked_by", "user", "uid", "command", "cgroup", "cooldown_key", "members", "start_ticks",
    "boot_id",
)  # fmt: skip
"""Keys that an address does not tell where commands are not shown."""

REMEDY_SCHEMAS: dict[str, Schema] = {
    "Remedies": record(
        "The record of what was done, oldest first.",
        schema=VERSION,
        simulated=flag("No real GPU stands behind this."),
        off=text('Why no remedy is taken until the next start; "" where they may be.'),
        stopped=text('Why no remedy is taken until somebody has looked; "" where they are.'),
        stopped_by=text('User and uid of the person who stopped them; "" without one, or where nobody is named.'),
        stopped_seconds=number("Unix time of that.", null=True),
        dry_run=flag("Rules do nothing, it is only said what they would do."),
        look_seconds=number("How long a fresh reading is waited for before each step."),
        proof_seconds=number("How long the memory's return is waited for after the last one."),
        withheld=listing(
            without(
                record(
                    "An alert that fires and has a ladder, and why nothing is done about it. Where commands are not "
                    "shown, `labels` and `reason` are missing.",
                    fingerprint=text("Of the alert."),
                    alertname=text(),
                    labels=mapping(text(), "Of the alert."),
                    reason=text("In words."),
                    since_seconds=number("Unix time since which this is the reason."),
                ),
                "labels",
                "reason",
            ),
            "What fires and is not acted on. A ladder that is under way is not in it.",
        ),
        remedies=listing(ref("Remedy")),
    ),
    "Remedy": without(record(
        "One run of a ladder on one process. Where commands are not shown, the keys are missing that name a person, or "
        "the process beyond what `/metrics` says of it; so are words that may.",
        id=text(),
        time_seconds=number("Unix time of its beginning."),
        alertname=text('The alert behind it; "" where a person asked.'),
        fingerprint=text("Of that alert."),
        expression=text("Of that alert's rule."),
        labels=mapping(text(), "Of that alert."),
        value=number("Of the expression.", null=True),
        values=listing(number(), "Of the expression, in the time before."),
        victim=text("How the process was chosen."),
        asked_by=text("User and uid of the person who asked, by the kernel's word."),
        forced=flag("The allow list was set aside."),
        dry_run=flag(),
        scope=text("process, or what falls with it."),
        ladder=listing(text(), "The steps that were planned."),
        waits_seconds=listing(number(), "How long each of them is waited for."),
        pid=integer("The process."),
        start_ticks=integer("Of the process: with `boot_id` no other can be meant."),
        boot_id=text(),
        uid=integer(null=True),
        user=text(),
        name=text("Of the process."),
        command=text("Redacted and cut."),
        cgroup=text(),
        unit=text("systemd's."),
        container_id=text(),
        container_name=text("Where it is known; `namespace/pod/container` in Kubernetes."),
        gpu=integer("NVML's index."),
        gpu_uuid=text(),
        used_bytes=integer("When the run began."),
        cooldown_key=text("What cools down: `unit:NAME`, `container:ID`, or `user:UID:` and a keyed digest."),
        members=listing(integer(), "Pids that fall with it."),
        steps=listing(without(record(
            "An intent, written before it is done; or its result.",
            time_seconds=number("Unix time."),
            kind=one_of(["intent", "result"]),
            step=text(),
            disrupts=flag("The app will notice. Intents only."),
            dry_run=flag(),
            pids=listing(integer()),
            ends_with_it=listing(text(), "Whom the kernel ends with the process; not where commands are not shown."),
            used_bytes=integer(null=True),
            note=text(),
            may_end=flag("A process may end because of it, be it later. Intents only."),
            processes=listing(record(
                "A process that may end because of it; not where commands are not shown.",
                pid=integer(), start_ticks=integer(), name=text(),
            ), "Whom rules wait for while one of them is still there."),
            gpu_uuids=listing(text(), "Where rules choose nobody else meanwhile; not where commands are not shown."),
            ok=flag("Results only."),
            errno=integer("The kernel's.", null=True),
            detail=text(),
            taken=flag("Something may have been done. Results only."),
            considered=flag("It was forbidden at the very last look: no action. Results only."),
        ), "disrupts", "dry_run", "pids", "ends_with_it", "used_bytes", "note", "ok", "errno", "detail", "may_end",
            "processes", "gpu_uuids", "taken", "considered")),
        end=without(record(
            "How it ended; missing while it goes on.",
            time_seconds=number("Unix time."),
            result=one_of(RESULTS),
            detail=text("In words."),
            acted=flag("A step beyond `release_cache` was taken."),
            released_bytes=integer(null=True),
            seconds=number("From the last step to the memory's return.", null=True),
            reasons=listing(text(), "Why it was refused."),
            not_permitted=flag("The kernel did not permit it."),
            step=text("At which it ended."),
        ), "detail", "released_bytes", "seconds", "reasons", "not_permitted", "step"),
    ), "end", *_HIDDEN),
    "Remedied": record(
        "What came of it. What an app answers to `release` and `reset` is there too, under the names that it gives.",
        pid=integer(),
        gpu=integer("NVML's index."),
        name=text("Of the process."),
        result=one_of(RESULTS),
        detail=text("In words."),
        released_bytes=integer(null=True),
        seconds=number("From the last step to the memory's return.", null=True),
        dry_run=flag(),
        advice=listing(text(), "What lifts a refusal: the option, or the key and its file."),
    ),
    "IdentifiedProcesses": record(
        "The GPU processes with what tells each from every other one that ever had its pid: what a request that acts "
        "on one of them has to carry.",
        schema=VERSION,
        source=one_of(["agent"], "Who has measured."),
        agent=record(
            "The agent itself.",
            simulated=text('The scenario; "" on a real node.'),
            pid_namespace=integer("Inode of the pid namespace in which its pids count; null is unknown.", null=True),
            dry_run=flag("Rules do nothing. What is asked for by hand is done all the same."),
        ),
        **TIMES,
        processes=listing(ref("IdentifiedProcess"), "By GPU, the largest first."),
        unreadable=listing(
            record(
                "A GPU whose processes are not known.",
                gpu=integer("NVML's index."),
                gpu_uuid=text(),
                text=text("State, reason, and since when."),
            ),
            "A process that is not in the list may be on one of these.",
        ),
    ),
    "IdentifiedProcess": record(
        "One process on one GPU.",
        **STATUS_SCHEMAS["Process"]["properties"],
        start_ticks=integer("Start in clock ticks since the boot; null where it is hidden.", null=True),
        boot_id=text(null=True),
        pid_namespace=integer("Inode of its pid namespace; null where the agent may not read it.", null=True),
        parent_pid=integer(null=True),
        card=text(
            "Digests, by the agent's own key, of what has to be so still when it is acted on: program, command line, "
            'users, cgroups, namespace, GPUs. "" where /proc cannot be read.'
        ),
        why_not=text('Why it cannot be acted on at all; "" if it can.'),
        ends_with_it=listing(
            record(
                "A process that ends, is hung up, or is stopped for good when another one ends.",
                pid=integer(),
                start_ticks=integer("Start in clock ticks since the boot."),
                process=text("Its name."),
                user=text(),
                belongs=flag("It is of the same container, or without one of the same user, cgroups and login."),
                certain=flag("False where it only may depend on it: the agent lacks the right to see that."),
                why=text("How it depends on it, in words that follow its name."),
            ),
            "Whom its end ends as well; null where that cannot be told.",
            type=["array", "null"],
        ),
    ),
}  # fmt: skip

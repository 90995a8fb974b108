"""What the control socket has besides: commands, and what only those may know who command."""

from __future__ import annotations

from gpuagent.identity import SHOWN_FIELDS
from gpuagent_exporters.api.answers import PID
from gpuagent_exporters.openapi.operation import Operation, Parameter, fault, in_path, json_as, json_of
from gpuagent_exporters.openapi.schema import (
    Schema,
    closed,
    flag,
    listing,
    not_all,
    number,
    one_of,
    record,
    request,
    text,
)
from gpuagent_exporters.openapi.schema import integer as whole

_MOST_SECONDS = 9_223_372_036
"""Go's longest duration, 292 years: what Alertmanager can take."""
_CLIENT_ROUTE = "/api/v1/clients/" + PID + "/{command}"
_PID = in_path("pid", whole(minimum=1, maximum=2**31 - 1), "As the host sees it.", 81204)
_WINDOW = number("How long to watch.", minimum=1, maximum=600, default=60)
_APP_FAULTS = {
    400: fault("An argument is none."),
    403: fault("The app does not allow it."),
    404: fault("No app with the embedded client has this pid."),
    409: fault("The app is busy with another command."),
    502: fault("The app did not do it."),
    504: fault("The app has not answered in time."),
}
_NOT_KEPT = fault("It could not be kept: the store fails.")

STEPS = ("release_cache", "reset", "terminate", "kill", "restart_unit")
"""What can be done by hand."""


def _remedy(path: str, operation: str, summary: str, description: str, **fields: Schema) -> Operation:
    """Something that is done to a process, by hand."""
    return Operation(
        "Remedies", "POST", path, operation, summary,
        {
            200: json_of("Remedied", "It was tried: `result` says what came of it."),
            400: fault("An argument is none, or one of the four is missing that name the process."),
            404: fault("No process with this pid is on a GPU."),
            409: fault("The process with this pid is not what the four name: nothing is done, nor recorded."),
            503: fault("It could not be recorded, so it is not done."),
        },
        description, (_PID,),
        closed(request(
            "What to do.", **fields, gpu=text("Index or UUID, where the process is on several."),
            force=flag("Set the allow list aside. Nothing else."), dry_run=flag("Only say what would be done."),
            start_ticks=whole("As `/api/v1/processes/identified` shows it.", minimum=1, maximum=2**63 - 1),
            boot_id=text("As shown there.", minLength=1),
            pid_namespace=whole("As shown there, also where that is null.", null=True, minimum=1, maximum=2**32 - 1),
            card=text("As shown there: all that it is a digest of has to be so still.", minLength=1),
            ends_with_it=listing(
                listing(whole(minimum=1, maximum=2**63 - 1), minItems=2, maxItems=2),
                "[pid, start_ticks] of each that a person was shown to end together with it: with `force`, these may.",
            ),
        ), *SHOWN_FIELDS),
        body_required=True, control_only=True, route=path.replace("{pid}", PID),
    )  # fmt: skip


def _app(name: str, operation: str, summary: str, answer: str, body: Schema, description: str = "") -> Operation:
    """A command to an app."""
    return Operation(
        "Apps", "POST", f"/api/v1/clients/{{pid}}/{name}", operation, summary,
        {200: json_of(answer, "The app has done it."), **_APP_FAULTS},
        description, (_PID,), body, "required" in body,
        control_only=True, route=_CLIENT_ROUTE,
    )  # fmt: skip


_CENSUS = {"window_seconds": _WINDOW, "show_keys": flag("Show the keys of dictionaries.")}

APP_OPERATIONS = (
    _app(
        "blame", "blameApp", "Find who holds the memory, and which line has allocated it", "Findings",
        not_all(
            closed(request("Arguments.", **_CENSUS, census=flag(default=True), lines=flag(default=True))),
            census=False, lines=False,
        ),
        "What `gpuagent blame` does: a census and a recording of lines, each as long as the window. One of the two may "
        "be left out.",
    ),
    _app("census", "censusOfApp", "Find who holds the memory", "Findings", closed(request("Arguments.", **_CENSUS))),
    _app(
        "lines", "linesOfApp", "Find which line has allocated it", "Findings",
        closed(request("Arguments.", window_seconds=_WINDOW)),
    ),
    _app(
        "limit", "limitApp", "Limit the allocator", "Figures",
        closed(request("Arguments.", ratio=number("Of the GPU's memory.", minimum=0.01, maximum=1)), "ratio"),
    ),
    _app(
        "rate", "rateApp", "Have the app report more or less often", "Figures",
        closed(request("Arguments.", interval=number("Seconds.", minimum=0.2, maximum=60)), "interval"),
    ),
)  # fmt: skip

COMMAND_OPERATIONS = (
    Operation(
        "Remedies", "GET", "/api/v1/processes/identified", "getIdentifiedProcesses",
        "The GPU processes, with what a request that acts on one of them has to carry",
        {200: json_of("IdentifiedProcesses", "At this moment.")},
        "What `gpuagent kill` shows before it asks. A pid names a process only until the kernel gives it to another.",
        control_only=True,
    ),
    Operation(
        "Remedies", "GET", "/api/v1/processes/{pid}/remedies", "getRemediesOfProcess",
        "What was done to one process, or is being done",
        {
            200: json_of("Remedies", "Of all that had this pid; nothing where there is none on record."),
            404: fault("It is no number."),
            503: fault("The record cannot be read."),
        },
        "What `gpuagent kill` follows while it waits.", (in_path("pid", whole(), "As the host sees it.", 81204),),
        control_only=True, route=f"/api/v1/processes/{PID}/remedies",
    ),
    _remedy(
        "/api/v1/processes/{pid}/kill", "killProcess", "Give a process's memory back, by hand",
        "What `gpuagent kill` does. The answer takes as long as the steps do. Whoever asks is recorded, by the "
        "kernel's word.",
        steps=listing(one_of(STEPS), "In this order.", minItems=1),
    ),
    _remedy(
        "/api/v1/clients/{pid}/release", "releaseCache", "Have an app empty its allocator's cache",
        "What `gpuagent release` does: the same checks and the same record as of a kill.",
        collect=flag("Run Python's garbage collector first, which makes the app stand still."),
    ),
    _remedy(
        "/api/v1/clients/{pid}/reset", "resetApp", "Have an app unload what it registered for this",
        "By the same checks, and on record.",
    ),
    Operation(
        "Remedies", "POST", "/api/v1/remedies/stop", "stopRemedies", "Stop all remedies of rules, at once",
        {
            200: json_as(
                record(
                    "", stopped=flag(const=True), recorded=flag("It is on record, and survives a restart."),
                    message=text('Why it is not on record; "" if it is.'),
                ),
                "Rules begin nothing, and what was under way takes no further step.",
            ),
        },
        "What `gpuagent remedies stop` does. It reads no file, and holds before it is recorded, until it is reset, "
        "also over a restart. What a person asks for afterwards is done all the same.",
        control_only=True,
    ),
    Operation(
        "Remedies", "POST", "/api/v1/remedies/reset", "resetRemedies", "Let remedies go on after they were stopped",
        {
            200: json_as(record("", reset=flag(const=True)), "They go on."),
            503: fault("It could not be recorded, so it is not done."),
        },
        control_only=True,
    ),
    Operation(
        "Alerts", "POST", "/api/v1/silences", "addSilence", "Say nothing of what matches, for a while",
        {201: json_of("Silence", "It holds now."), 400: fault("A matcher or duration is none."), 503: _NOT_KEPT},
        body=closed(request(
            "A silence.",
            matchers=listing(text(examples=['gpu="0"']), "Alertmanager's; all must match.", minItems=1),
            seconds=number("How long.", exclusiveMinimum=0, maximum=_MOST_SECONDS),
            comment=text(),
        ), "matchers", "seconds"),
        body_required=True, control_only=True,
    ),
    Operation(
        "Alerts", "DELETE", "/api/v1/silences/{id}", "expireSilence", "End a silence",
        {200: json_of("Silence", "It has ended."), 404: fault("There is no such silence."), 503: _NOT_KEPT},
        parameters=(in_path("id", text(), "Of the silence.", "0b6f7f4c"),), control_only=True,
    ),
    Operation(
        "Alerts", "POST", "/api/v1/acks", "acknowledge", "Say that somebody is at it: no repeats",
        {
            201: json_of("Acknowledged", "It is."), 400: fault("A field is none."),
            404: fault("Nothing of that fires."), 503: _NOT_KEPT,
        },
        body=closed(request(
            "What is acknowledged.", alert=text("A fingerprint, or the name of a rule."), comment=text(),
        ), "alert"),
        body_required=True, control_only=True,
    ),
    Operation(
        "Alerts", "DELETE", "/api/v1/acks/{alert}", "unacknowledge", "Take that back",
        {
            200: json_of("Unacknowledged", "It is repeated again."), 404: fault("Nothing of that is acknowledged."),
            503: _NOT_KEPT,
        },
        parameters=(in_path("alert", text(), "A fingerprint, or the name of a rule.", "GpuLost"),),
        control_only=True, route="/api/v1/acks/{alert:path}",
    ),
    Operation(
        "Receivers", "GET", "/api/v1/alerts/dead", "getDeadLetters", "Messages that nobody took",
        {200: json_of("DeadLetters", "Oldest first."), 503: fault("The store cannot be read.")}, control_only=True,
    ),
    Operation(
        "Receivers", "POST", "/api/v1/receivers/replay", "replay", "Send these again",
        {200: json_of("Replayed", "They wait to be sent."), 404: fault("There is no such message."), 503: _NOT_KEPT},
        parameters=(Parameter("id", text(), "One message; all without it."),), control_only=True,
    ),
    Operation(
        "Receivers", "POST", "/api/v1/receivers/{name}/test", "testReceiver", "Send a test message now",
        {
            200: json_of("ReceiverTest", "It was taken."), 400: fault("This one is sent nothing."),
            404: fault("There is no such receiver."), 502: json_of("ReceiverTest", "It was not taken."),
            503: _NOT_KEPT,
        },
        parameters=(in_path("name", text(), "Of the receiver.", "ops"),),
        control_only=True, route="/api/v1/receivers/{name:path}/test",
    ),
    Operation(
        "Agent", "POST", "/api/v1/pause", "pause", "Give the GPUs back to the driver for a while",
        {
            200: json_as(
                record("", paused_seconds=number(), released=flag("Nothing of the driver is held any more.")),
                "It lets go.",
            ),
            400: fault("Not a number of seconds."),
        },
        "Before a driver upgrade, a GPU reset or a change of MIG. Ask with GET until `released` is true.",
        (Parameter("seconds", number(exclusiveMinimum=0, maximum=86_400), "How long.", required=True, example=600),),
        control_only=True,
    ),
    Operation(
        "Agent", "GET", "/api/v1/pause", "getPause", "Whether the GPUs are given back",
        {200: json_as(record("", released=flag("Nothing of the driver is held.")), "At this moment.")},
        control_only=True,
    ),
    Operation(
        "Agent", "POST", "/api/v1/resume", "resume", "Measure again",
        {200: json_as(record("", resumed=flag(const=True)), "It begins.")}, control_only=True,
    ),
    Operation(
        "Agent", "POST", "/api/v1/reload", "reload", "Read the configuration again",
        {
            200: json_as(
                record("", reloaded=flag(const=True), error=text(const=""), notes=listing(text())),
                "It is in force; the notes are those of `gpuagent config check`.",
            ),
            409: json_as(
                record("", reloaded=flag(const=False), error=text("Every fault.")), "The old one stays in force."
            ),
        },
        control_only=True,
    ),
    *APP_OPERATIONS,
)  # fmt: skip

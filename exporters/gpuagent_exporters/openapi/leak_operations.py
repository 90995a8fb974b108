"""What can be asked of the leak detector, and told to it."""

from __future__ import annotations

from gpuagent_exporters.api.answers import PID
from gpuagent_exporters.api.leak_routes import LABELS
from gpuagent_exporters.openapi.operation import Operation, Parameter, fault, in_path, json_as, json_of
from gpuagent_exporters.openapi.schema import closed, integer, one_of, record, request, text

_GPU = Parameter("gpu", text(pattern=r"^[A-Za-z0-9_:./-]{1,80}$"), "Index or UUID, where it is on several.")
_PID = in_path("pid", integer(minimum=1, maximum=2**31 - 1), "As the host sees it.", 81204)
_ENTRY = in_path("entry", text(), "Of the entry.", "1795000000000-81204-0")
_NO_ENTRY = fault("There is no such entry.")
_NO_PROCESS = fault("Nothing is remembered of such a process.")

LEAK_READ_OPERATIONS = (
    Operation(
        "Leaks", "GET", "/api/v1/leaks/{pid}", "explainLeak", "Why a process is called leaking, or is not",
        {
            200: json_of("LeakEvidence", "At this moment."),
            400: fault("It is on several GPUs, or a parameter is none."), 404: _NO_PROCESS,
        },
        "What `gpuagent leaks explain` shows.",
        (_PID, _GPU),
        route=f"/api/v1/leaks/{PID}",
    ),
    Operation(
        "Leaks", "GET", "/api/v1/leaks/trace", "getLeakTraces", "The history of a process, of all on a GPU, or of all",
        {
            200: json_of("LeakTraces", "As far as it is kept."), 400: fault("A parameter is none."),
            404: _NO_PROCESS,
        },
        "What `gpuagent history export` writes into a file for `gpuagent replay`.",
        (Parameter("pid", text(pattern="^[0-9]{1,10}$"), "One process."), _GPU),
    ),
    Operation(
        "Leaks", "GET", "/api/v1/leaks/feedback", "getLeakFeedback", "What people have said of verdicts",
        {200: json_of("LeakFeedback", "Without the histories.")},
    ),
    Operation(
        "Leaks", "GET", "/api/v1/leaks/feedback/{entry}", "getLeakFeedbackEntry", "One of these, with its history",
        {200: json_of("LeakFeedbackEntry", "What `gpuagent replay --labelled` replays."), 404: _NO_ENTRY},
        parameters=(_ENTRY,),
    ),
)  # fmt: skip

LEAK_COMMAND_OPERATIONS = (
    Operation(
        "Leaks", "POST", "/api/v1/leaks/{pid}/feedback", "addLeakFeedback", "Say whether a process leaks",
        {
            201: json_of("LeakFeedbackAdded", "It is kept, with the history of the process."),
            400: fault("A field is none, the process is on several GPUs, or there is no history of it yet."),
            404: _NO_PROCESS, 503: fault("It could not be kept."),
        },
        "What `gpuagent leaks feedback` does. Whoever asks is recorded, by the kernel's word. Nothing else changes: no "
        "alert ends, and no sensitivity.",
        (_PID,),
        body=closed(request(
            "What is so.",
            gpu=text("Index or UUID, where it is on several.", pattern="^[A-Za-z0-9_:./-]{0,80}$"),
            label=one_of(LABELS), note=text("Why.", maxLength=1000),
        ), "label"),
        body_required=True, control_only=True, route=f"/api/v1/leaks/{PID}/feedback",
    ),
    Operation(
        "Leaks", "POST", "/api/v1/leaks/feedback/{entry}/remove", "removeLeakFeedback", "Take that back",
        {
            200: json_as(record("", removed=text("Id of the entry.")), "It is forgotten."), 404: _NO_ENTRY,
            503: fault("It could not be removed."),
        },
        parameters=(_ENTRY,), control_only=True,
    ),
)  # fmt: skip

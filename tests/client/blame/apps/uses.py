"""Prints how the bytecode of the running Python is read: for each function below, what it does with KEPT, and where."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103, E704, F841, FURB110, N803, N806, PLW0603, T201

from __future__ import annotations

import json
from collections.abc import Callable

from gpuagent_client.blame.code_index import CodeIndex
from gpuagent_client.blame.indirect import attributes_set_to, lines_that_replace
from gpuagent_client.blame.sites import ATTRIBUTE_LOADS, GLOBAL_LOADS, uses

KEPT: object = None
ALL: dict[str, Callable[..., object]] = {}
HERE = 1  # lines are counted from the `def`


def case(function: Callable[..., object]) -> Callable[..., object]:
    ALL[function.__name__] = function
    return function


# fmt: off
@case
def append(x): KEPT.append(x)
@case
def store(k, v): KEPT[k] = v
@case
def store_under_a_made_key(k, v): KEPT[str(k)] = v
@case
def store_under_a_chosen_key(k, v): KEPT[k or "none"] = v
@case
def attribute_append(s, n, x): s.KEPT[n].append(x)
@case
def attribute_setdefault(s, n, x): s.KEPT.setdefault(n, []).append(x)
@case
def through_an_alias(x):
    kept = KEPT
    other = 1
    kept.append(x)
@case
def element_alias(n, x):
    mine = KEPT[n]
    mine.append(x)
@case
def in_place(k, v): KEPT[k] += v
@case
def rebound(x):
    global KEPT
    KEPT = KEPT + x
@case
def first_bound():
    global KEPT
    KEPT = []
@case
def attribute_in_place(s, x): s.KEPT += [x]
@case
def conditional_value(x): KEPT.append(x if x else None)
@case
def nested_store(k, v): KEPT[k]["x"] = v
@case
def slice_store(v): KEPT[1:2] = v
@case
def passed_on(x, push): push(KEPT, x)
@case
def taken(k):
    del KEPT[k]
@case
def popped(): KEPT.popitem(last=False)
@case
def appended_in_a_loop(xs):
    for x in xs:
        if x:
            KEPT.append(x)
@case
def only_counted(): return len(KEPT)
@case
def only_an_attribute_counted(x): return len(x.KEPT) > 1
@case
def only_a_deep_attribute_counted(x, push): push(len(x.y.KEPT))
@case
def only_read(k): return KEPT[k]
@case
def only_a_key(x, y): x[KEPT[0]] = y
@case
def only_a_value(x, k): x[k] = KEPT
@case
def only_iterated(y):
    for x in KEPT:
        y.append(x)
@case
def only_asked(x): return KEPT.get(x).append(1)
@case
def another_attribute(x): KEPT.other.append(x)
@case
def alias_of_the_same_name(s, k, v):
    KEPT = s.KEPT[k]
    KEPT["last"] = v
@case
def through_get(x): KEPT.get().append(x)
@case
def through_get_of_an_alias(x):
    kept = KEPT.get(None)
    kept.append(x)
@case
def row_of_a_frame(k, v): KEPT.loc[k] = v
@case
def replaces_a_field(s, x):
    other = s.KEPT
    return s._replace(
        first=None,
        KEPT=(*s.KEPT, x),
    )
@case
def replaces_another_field(s, x): return s._replace(first=(*s.KEPT, x))
@case
def sets_attribute(s, KEPT, other):
    s.first = KEPT
    s.second = other
    s.third = KEPT + other
    KEPT.fourth = s
# fmt: on


def main() -> None:
    found = {}
    for name, function in ALL.items():
        code = function.__code__
        if name.startswith("sets_"):
            found[name] = attributes_set_to(code, "KEPT")
            continue
        if name.startswith("replaces_"):
            sites = lines_that_replace("KEPT", None, CodeIndex([function], []))
            found[name] = [[site.how, site.line - code.co_firstlineno] for site in sites]
            continue
        through = "get" if name.startswith("through_get") else ""
        seen = uses(code, "KEPT", GLOBAL_LOADS, through) or uses(code, "KEPT", ATTRIBUTE_LOADS)
        found[name] = [[use.how, use.line - code.co_firstlineno] for use in seen]
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Find lines that fill an object by a name that is made at run time: getattr(self, name).append(x)."""

from __future__ import annotations

from gpuagent_client.blame.sites import (
    ADDING,
    STATEMENT_ENDS,
    Site,
    Use,
    codes_of,
    is_library,
    read_code,
    site_of,
)

SETTERS = frozenset(
    ["setattr", "__setattr__", "register_buffer", "register_parameter", "add_module", "register_module"]
)
ATTRIBUTES = frozenset(["__dict__", "vars"])
DOUBT = 1.0
"""More than that of a method that adds by the name itself, less than that of a caller."""


def lines_by_made_names(owner: object, *, sets: bool) -> list[Site]:
    """Return lines in methods of the owner's class that set an attribute, or add to one, by a name that they make."""
    found = {}
    for kind in type(owner).__mro__:
        for code in codes_of(kind):
            if is_library(code) or not {"getattr", *ATTRIBUTES, *SETTERS}.intersection(code.co_names):
                continue
            asked = False
            for op in read_code(code):
                changes = asked and (op.value in ADDING or (sets and op.name == "STORE_SUBSCR"))
                if op.name.startswith(STATEMENT_ENDS):
                    asked = False
                asked = asked or (op.value in ATTRIBUTES if sets else op.value == "getattr")
                if changes or (sets and op.value in SETTERS):
                    site = site_of(code, Use("added", op.line))._replace(doubt=DOUBT)
                    found[site.file, site.line] = site
    return [found[place] for place in sorted(found)]

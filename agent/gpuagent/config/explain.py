"""Pydantic's findings in plain English, with what is allowed and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpuagent.config.describe import Spot, spot_at
from gpuagent.config.faults import KeyPath, Problem, listed, nearest, shown
from gpuagent.config.section import Section
from gpuagent.config.values import kind_of

_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "tuple_type": "a list",
    "model_type": "a mapping",
}
"""Pydantic's types of errors, for the types that the models use."""


def explain(model: type[BaseModel], error: ValidationError) -> Iterator[Problem]:
    """Turn each finding into a problem in the words of the configuration file."""
    for details in error.errors(include_url=False):
        # A list is also called too short when its items are bad: those are told by themselves.
        if details["type"] != "too_short" or not details["input"]:
            yield _problem(model, details)


def _problem(model: type[BaseModel], details: ErrorDetails) -> Problem:
    path = details["loc"]
    if details["type"] == "extra_forbidden":
        return _unknown_key(model, path)
    spot = spot_at(model, path)
    allowed = spot.allowed() if spot else ""
    if details["type"] == "missing":
        return Problem(path, "is missing", allowed)
    if details["input"] is None:
        return Problem(path, "has no value", allowed)
    if details["type"] == "literal_error" and spot is not None:
        return _wrong_word(path, details["input"], spot)
    return Problem(path, _in_words(details, spot), allowed)


def _unknown_key(model: type[BaseModel], path: KeyPath) -> Problem:
    parent = spot_at(model, path[:-1])
    if parent is None or parent.section is None or not issubclass(parent.section, Section):
        return Problem(path, "unknown key")
    section = parent.section
    noun = section.key_noun
    near = nearest(str(path[-1]), section.model_fields)
    return Problem(path, f"unknown {noun}", ", ".join(section.key_names()), near)


def _wrong_word(path: KeyPath, given: object, spot: Spot) -> Problem:
    if not isinstance(given, str):
        return Problem(path, f"must be text, not {kind_of(given)}", spot.allowed())
    words = get_args(spot.annotation)
    return Problem(path, f"{shown(given)} is unknown", listed(words), nearest(given, words))


def _in_words(details: ErrorDetails, spot: Spot | None) -> str:
    context = details.get("ctx", {})
    bound = next((context[name] for name in ("ge", "le") if name in context), None)
    write: Callable[[object], str] = spot.write if spot else str
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            return f"{write(details['input'])} is too little: it must be at least {write(bound)}"
        case "less_than_equal":
            return f"{write(details['input'])} is too much: it must be at most {write(bound)}"
        case "too_short":
            return "is empty"
        case "too_long":
            return f"has more than {context['max_length']} items"
    wanted = _WANTED.get(details["type"])
    return f"must be {wanted}, not {kind_of(details['input'])}" if wanted else "cannot be used"

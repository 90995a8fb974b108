"""Configuration: one YAML file, read whole, checked whole, then frozen.

Reading order: `models` with `agent`, `alerting` and `remedies` (what can be set), `values` (how one
value is read), `section` (checks between keys), `document` (YAML with line numbers), `explain`
(pydantic's findings in plain English), `faults` (what is reported), `load` (all of it, in order),
`render` and `reference` (the way back out).

The agent loads none of that: `apart` has a `child` read the file, and what comes is a `record`. Its modules import the
models for type checkers alone; a test sees to it.
"""

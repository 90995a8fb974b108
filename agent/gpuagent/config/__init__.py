"""Configuration: one YAML file, read whole, checked whole, then frozen.

Reading order: `models` with `agent`, `alerting`, `remedies` and `sources` (what can be set), `values` and `checks` (how
one value is read), `section` (what a section says of itself, checks between keys), `document` (YAML with line numbers),
`faults` (what is reported), `load` (all of it, in order), `reference` (the way back out).

The agent loads none of that: `child_reader` has a `child` read the file, and what comes is a `Record`. Its modules
import the models for type checkers alone; a test sees to it.
"""

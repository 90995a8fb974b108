"""Configuration: one YAML file, read whole, checked whole, then frozen.

Reading order: `models` with `agent`, `alerting`, `leaks` and `remedies` (what can be set), `values` and `checks` (how
one value is read), `faults` (what is reported), `load` (all of it, in order), `reference` (the way back out). How a
section is declared and read is in `gpuagent.core.sections`, YAML with line numbers in `gpuagent.core.yaml_document`.
"""

"""Simulate a GPU server: NVML's C entry points in pure Python, driven by a scenario file.

It stands in for the *library*, not for our code: an object is placed under pynvml, so that the demo, the tests and a
laptop without a GPU run the very code that runs on a GPU server. In reading order:

    curves      memory and gauges as pure functions of the scenario's time
    spec        the scenario file as validated data, with `faults` and what GPU models have and lack
    scenario    loads a scenario by name or path, every mistake with file, line and key
    node        the whole node: clock, GPUs, processes, faults, library and /proc
    process     one process, made up or, by `Bindings`, a real one, and the text of its /proc
    device      one GPU or MIG device, at one second of the scenario
    session     between init and shutdown: driver reloads, handles, what an entry point is and whether it is answered
    entries_*   the bodies of the entry points, one group a module
    library     all of them as one object; `abi` is how C sees them
"""

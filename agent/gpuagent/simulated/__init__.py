"""A GPU server that does not exist: NVML's C entry points in pure Python, driven by a scenario file.

It stands in for the *library*, not for our code: an object is placed under pynvml, so that the demo, the tests and a
laptop without a GPU run the very code that runs on a GPU server. In reading order:

    functions   memory and gauges as pure functions of time
    spec        the scenario file as validated data, with `faults`, `models` and the kinds of `fields`
    scenario    loads a scenario by name or path, every mistake with file, line and key
    node        the whole node: clock, GPUs, processes, faults, library and /proc
    process     one process, made up or, by `bindings`, a real one
    device      one GPU or MIG device, at one second of the `story`; `engines` is what follows from its load
    session     between init and shutdown: driver reloads, handles (`pointers`), whether a call is answered at all
    entry       what an entry point is; `entries_*`, `events` and `samples` are their bodies, one group a module
    library     all of them as one object; `arguments`, `structs` and `codes` are how C sees them
    proc        the text of /proc for pids that do not exist
"""

"""A GPU server that does not exist.

NVML's C entry points in pure Python, driven by a scenario file.

It stands in for the *library*, not for our code: an object is placed under pynvml, so that the
demo, the tests and a laptop without a GPU run the very code that runs on a GPU server. In reading
order:

    functions   memory and gauges as pure functions of time
    spec        the scenario file, as validated data; `faults` and `fields` are parts of it
    scenario    loads a scenario by name or path, every mistake with file, line and key
    node        the whole node: clock, GPUs, processes, faults, library and /proc
    process     one made-up or bound process; `device` one GPU; `engines` what follows from its load
    session     initialisation, driver reloads, handles
    library     the object with the entry points; `entries_*` are their bodies, one group a module
    proc        the text of /proc for pids that do not exist
"""

"""Recording real traces of a real app: `python -m benchmarks.leak.recorded`, half an hour.

cases       what is recorded: the example app with one of its leaks, or healthy, and its traffic
apps        what runs in the interpreter that has torch: the example app as a process of its own, with the client, and
            where torch's figures come from in it: glibc's allocator, for there is no GPU
app         such a process, seen from outside
traffic     real requests
days        services of days (`python -m benchmarks.leak.recorded.days`), whose clock runs faster than life
stage       the agent's monitor over a node whose only made-up part is the GPU; what is read goes into the files

What is real and what is not stands in tests/data/leaks/README.md.
"""

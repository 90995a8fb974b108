"""`gpuagent doctor --capture`: write down what the driver of this machine answers, to be replayed elsewhere.

`recorder` stands between pynvml and the driver's library, `getters` asks what the agent itself does not, `session` runs
both in two passes, `host` has the facts around the driver, `redaction` hides who and what runs here, and `write` makes
the file. `gpuagent_simulator.captures` reads it.
"""

"""`gpuagent top`: the screen one works in. It needs the package textual, which nothing else here imports."""

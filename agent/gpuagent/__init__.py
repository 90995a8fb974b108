"""gpuagent: a node agent for GPU memory."""

__version__ = "0.2.0"

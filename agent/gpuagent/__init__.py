"""gpuagent: a node agent for GPU memory."""

__version__ = "0.1.0"

"""Model servers that tell of their memory over HTTP: vLLM, SGLang, Ollama, Triton.

NVML is the truth for bytes; a server's endpoint explains what they are for. `fetch` asks, with bounds; one module for
each kind of server reads its answer; `sources` asks all of them again and again.
"""

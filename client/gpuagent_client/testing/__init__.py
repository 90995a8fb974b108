"""Leak gate for tests: call a function many times, and fail where GPU or tensor memory grows with the calls.

With pytest, `@pytest.mark.gpu_leak` and the fixture `gpu_leak` are there as soon as the client is installed. With any
other runner, `find_leak(function)` returns the leak or None. torch is found where the test has loaded it, never
imported, and CUDA is never started.

In reading order: `gate` (the rule, what is measured, the run), `holders` (the line that holds it);
the plugin of pytest is `gpuagent_client.pytest_plugin`.
"""

from __future__ import annotations

from gpuagent_client.testing.gate import Leak, find_leak

__all__ = ["Leak", "find_leak"]

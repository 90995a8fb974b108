"""For gunicorn: uvicorn's worker class, and a fresh worker for one that has grown, or that the agent asks to end.

python -m gpuagent_client -m gunicorn app:app
"""

from __future__ import annotations

from gpuagent_client.serving.gunicorn import GIB, Recycling

bind = "127.0.0.1:8000"
workers = 2
worker_class = "uvicorn.workers.UvicornWorker"

recycling = Recycling(above_bytes=8 * GIB, on_notice=True)
post_worker_init = recycling.post_worker_init
post_request = recycling.post_request

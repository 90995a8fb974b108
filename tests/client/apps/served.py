"""A FastAPI app as they are: a model, an endpoint, and the client in one line."""
# mypy: disable-error-code="import-not-found, untyped-decorator"
# Neither torch nor FastAPI is where the checks run.

import os

import torch
from fastapi import FastAPI

import gpuagent_client

gpuagent_client.start(app="served")

app = FastAPI()
model = torch.nn.Linear(16, 16)


@app.get("/")
def predict() -> dict[str, int]:
    """Something that uses the model."""
    with torch.inference_mode():
        return {"pid": os.getpid(), "size": model(torch.ones(1, 16)).numel()}

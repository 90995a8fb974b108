"""The model: loaded once, asked by many threads, on a GPU where there is one."""
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import threading

import torch

WORDS, WIDTH, CLASSES = 4096, 256, 8


class Sentiment(torch.nn.Module):
    """Stands for what takes gigabytes in your app."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(WORDS, WIDTH)
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of one text, of shape (1, CLASSES)."""
        scores: torch.Tensor = self.head(self.encoder(self.embedding(words)))
        return scores


class Loaded:
    """The one copy in this process. A second thread that asks while it loads waits, and loads no second one."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._lock = threading.Lock()
        self._module: Sentiment | None = None

    def module(self) -> Sentiment:
        """Return the model, ready to infer."""
        with self._lock:
            if self._module is None:
                self._module = Sentiment().to(self.device).eval()
            return self._module

    def words(self, text: str) -> torch.Tensor:
        """Encode a text as the model takes it."""
        numbers = [sum(map(ord, word)) % WORDS for word in text.split()] or [0]
        return torch.tensor([numbers], device=self.device)

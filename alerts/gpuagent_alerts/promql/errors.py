"""What can go wrong with an expression: when it is read, and when it is evaluated."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The text is no PromQL, or uses a part of it that the agent does not have. Told in words, with the way out."""


class EvaluationError(Exception):
    """The series do not suit the expression: the same labels twice, or many on both sides of an operator."""

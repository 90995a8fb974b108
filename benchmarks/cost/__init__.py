"""What the agent costs, and what it may: `python -m benchmarks.cost`. The table is docs/cost.md."""

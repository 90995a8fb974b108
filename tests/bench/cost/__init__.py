"""What the agent costs, and what it may: `python -m tests.bench.cost`. The table is docs/cost.md."""

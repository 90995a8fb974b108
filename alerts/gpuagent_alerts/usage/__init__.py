"""The usage ledger: who has held the GPUs, for how long, and what they did with them."""

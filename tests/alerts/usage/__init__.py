"""The usage ledger."""

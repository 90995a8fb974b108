"""One fake per edge of the agent, used by every test that needs it."""

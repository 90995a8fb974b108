"""Programs that the agent runs: without a shell or a capability, hardly an environment, and with an end."""

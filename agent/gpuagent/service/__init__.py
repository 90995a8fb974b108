"""The agent as a service: its parts put together, its loop, its HTTP servers, and what people ask of it."""

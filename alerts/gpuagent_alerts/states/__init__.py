"""From rules to alerts: the state of every instance, what is missing, and groups evaluated at their interval."""

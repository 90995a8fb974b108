"""The HTTP API: routes, the documents that they serve, and commands on the control socket alone."""

"""The HTTP server: sockets, bounds, TLS and passwords, and what is checked of every request."""

"""Notes on a configuration: what it names that is not there, what cannot be meant, and who is never told."""

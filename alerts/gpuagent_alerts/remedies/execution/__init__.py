"""The only code that acts on processes: signals over pidfds, unit restarts, programs, and requests to apps."""

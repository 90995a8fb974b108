"""Ways to tell somebody: one module per kind."""

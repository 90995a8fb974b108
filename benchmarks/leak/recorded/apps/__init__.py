"""Programs of the interpreter that has torch."""

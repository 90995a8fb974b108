"""Against the real driver: run where there is a GPU (`pytest -m gpu`), skipped with the reason elsewhere."""

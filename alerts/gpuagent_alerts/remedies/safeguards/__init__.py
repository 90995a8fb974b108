"""Who may be acted on, how often, and by which rules: pure decisions over facts that others have read."""

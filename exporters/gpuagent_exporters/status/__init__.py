"""The status document: one snapshot as JSON, with the problems found in it."""

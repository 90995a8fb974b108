"""What /proc and cgroups say about processes at this moment: identity, who ends with whom, who is on the never-list."""

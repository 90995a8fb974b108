"""The agent's hands: the only part that signals a process, restarts a unit or runs a program to give memory back."""

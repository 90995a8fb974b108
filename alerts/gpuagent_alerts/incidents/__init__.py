"""Which alerts have one cause, and the life of what they amount to: an incident begins, worsens, ends, may reopen."""

"""What people are told of incidents: the headline, the briefing, and why an alert ended."""

"""Who is told of what, and when: routes, silences, acknowledgements, and what follows from something worse."""

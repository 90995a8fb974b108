"""Who else can change a file that the agent trusts: configuration, rules, state, and programs of `exec` steps."""

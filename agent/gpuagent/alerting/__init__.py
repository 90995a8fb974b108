"""The alerting half at work: rules over each snapshot, states that survive, messages that arrive.

The parts are in `gpuagent_alerts`; here they are put together. `rules` loads what is in force, `alerting` runs it,
`commands` shows it.
"""

"""The vocabulary that every other package shares. It imports none of them.

`snapshot` is what was measured at a tick, made of the figures in `hardware` and of the detector's word in `growth`;
`identity` tells processes apart; `metrics` declares every metric and turns a snapshot into series. `units`, `clock`,
`matchers`, `wording`, `regular_files` and `api_client` are what every surface uses the same way.
"""

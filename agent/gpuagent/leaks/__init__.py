"""The leak detector at work: a history for each process on each GPU, fed with every snapshot.

The detector itself is `gpuagent_alerts.leak`, and knows numbers only. Here it is put to the node: `sensor` feeds it,
`places` says what is free for whom, `whole` sums a GPU up, `keeper` takes the histories over a restart.
"""

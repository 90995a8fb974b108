"""The leak benchmark: simulated GPU jobs, the detector and what people use today, in one table.

Everything is made up here, so that the truth is known: `allocator` follows the published rules of torch's caching
allocator, `workload` runs jobs on it, `benign`, `leaking` and `hard` are the families of jobs, `peers` the methods to
compare with, `score` the rules of the count. `python -m benchmarks.leak` prints the table and draws the plots.
"""

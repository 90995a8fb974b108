"""PromQL over the series of one tick: the instant-vector part of the language, as Prometheus 2.42 evaluates it.

`compile.compile_expression` reads an expression once; `Expression.evaluate` runs it on a `series.SeriesIndex`.
"""

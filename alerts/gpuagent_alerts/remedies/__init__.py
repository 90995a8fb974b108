"""Giving GPU memory back: the ladder of steps, who may be acted on, how often, and the record of it.

`manager` and `run` take the steps over two interfaces, `Observer` and `ActionExecutor` (`observation`). `safeguards`
has the decisions, which are pure; `facts` reads /proc, `files` judges who else can write what is trusted, and
`execution` is the only code that touches a process.
"""

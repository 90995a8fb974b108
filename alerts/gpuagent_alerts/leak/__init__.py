"""Telling a leak from a cache, per process, online.

One idea: look at the floor, ask for growth in proportion to what is free, spread evenly over the window, not slowing
down, onto ground never held before. `settings.py` has every threshold with its reason.

`detector.py` judges one process and knows numbers only. `sensor.py` puts it to the node: a history for each process on
each GPU (`histories.py`), fed with every snapshot (`gpu_sensor.py`) and summed up for the GPU (`device.py`).
"""

"""Clips a second of LeRobot and of seqrecord from one LeRobot dataset.

::

    make lerobot-env     # a Python that has lerobot
    python -m benchmarks.lerobot FOLDER --to benchmarks/lerobot

Both deliver the same windows in a shuffled order, batch by batch, each row in a process of its own.
"""

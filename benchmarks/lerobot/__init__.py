"""Clips a second of LeRobot and of seqrecord from one LeRobot data set.

::

    python -m benchmarks.lerobot.generate ROOT             # with lerobot: two cameras, 2,520 frames
    python -m benchmarks.lerobot ROOT RECORDS --lerobot /path/to/python-with-lerobot

Both deliver the same windows in a shuffled order, batch by batch. LeRobot reads them with each of
its decoders and numbers of workers, and the best of these counts. Rounds of both take turns.
"""

"""How fast clips of this loader come, as shares of what this machine's memory can copy.

::

    python -m benchmarks.tartanair.throughput FOLDER --to benchmarks/tartanair/throughput

Renders a tree and packs it where FOLDER lacks them. Each row of the table runs in a process of its
own, all rows once before any of them twice; one timing loop serves all.
"""

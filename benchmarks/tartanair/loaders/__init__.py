"""The loaders of the comparison, as rows of tables: `LOADERS` of `arrays`, `streams`, `records`.

A `base.Loader` has a name and two functions. `prepare(recordings, folder, settings)` writes the
recordings' frames in the loader's own format. `open(folder, clips, settings)` returns an iterable;
each iteration is an epoch: batches of exactly these clips, each once. `base.map_style` builds it
from a function that reads one clip; `streams.windows` builds clips from frames in order.

Packages are imported inside functions. `benchmarks/tests/test_loaders.py` compares each loader with
the original files, bit for bit.
"""

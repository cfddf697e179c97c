"""The loaders that are compared, one small file each.

To add one, write a file here with `LOADERS`, a list of `base.Loader`:

- `prepare(recordings, folder, settings)` writes the frames of `recordings.rows()`, or episode by
  episode of `recordings.read()`, in the loader's own format.
- `open(place, clips, settings)` gives something whose every iteration is an epoch: batches of
  exactly these clips, each once. For clips read by number, `map_style.map_style` makes it from an
  object with `read(clip)`; for frames that come in order, `windows` makes clips of them.
- What it needs and what it cannot do is said in the other fields.

Packages are imported inside functions. `benchmarks/tests/test_compare_loaders.py` then
checks it against the original files, and `python -m benchmarks.tartanair.compare` has rows of it.

The other workloads' loaders are in `benchmarks/audio/loaders` and `benchmarks/rgbd/loaders`, made
the same way; `benchmarks/tests/test_workloads.py` checks them.
"""

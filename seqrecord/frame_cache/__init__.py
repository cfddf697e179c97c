"""Frame cache: decoded frames on a local disk, below the order of clips and invisible to it.

Read first, in this order:

- `frames`: what a frame depends on, and the frames of a dataset in a folder.
- `files`: layout of the folder's files, maps of them, eviction.

The loader knows a reader of chunks, `loader.engine.frame_readers.FrameReader`.

May import: `store`, `loader`. Tests: `make test-part PART=frame_cache`.
"""

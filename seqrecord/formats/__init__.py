"""Formats: datasets in other formats, to convert, to read in place, and to export.

A source reads one format and accounts for the whole original: the features it takes, and everything
left out. docs/packing.md and docs/in-place.md are for users.

Read first, in this order:

- `sources.registry`: formats by name, detection.
- `sources.common.originals`: `Originals`, the base class of most sources; `sources.tum` is the
  shortest source.
- `sources.common.images`, `sources.common.cameras`, `sources.common.tables`: shared readers.
- `sources.video.streams`: intake of video files: keyframes, display order, kept packets.
- `converting.convert`: `convert`; `converting.described_source`, `converting.packing`: its steps;
  `converting.convert_jobs`: one episode;
  `converting.clusters`: Dask and Ray.
- `indexing.originals`: the index of an original, to read it in place.
- `export.lerobot`, `export.files`, `export.hub`: datasets in other formats.

Extend it: docs/contributing.md adds a source in five steps.

May import: `store`, `video`, `in_place`, `cloud`. Tests: `make test-part PART=formats`.
"""

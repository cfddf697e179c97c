"""Camera: poses, intrinsics and distortion of images in batches, in one convention.

The loader's argument `camera=` adds columns for each image; docs/cameras.md has their meaning.
Values come from the metadata of episodes and from features, and follow crops, resizing and flips.
The loader knows the columns as `loader.pipes.registered_columns`, and loads this part by its name.

Read first, in this order:

- `values`: `Camera` and `RelativePose`, the argument.
- `maker`: what the loader loads for `camera=`.
- `columns`: `CameraColumns`, from stored values to the columns of a batch.
- `rigs`: sources of poses, intrinsics and distortion, by episode; `conventions`: poses of formats.
- `frames`: values of single frames, read beside the frames of clips.
- `flips`: mirrored worlds; `relative`: poses relative to another frame.

Extend it: poses of another format are a `_Convention` in `conventions`, with an original in
`tests/formats/camera_originals.py`.

May import: `store`, `loader`. Tests: `make test-part PART=camera`.
"""

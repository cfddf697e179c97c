"""Values of frames: dtypes and shapes, users' functions, normalization, statistics."""

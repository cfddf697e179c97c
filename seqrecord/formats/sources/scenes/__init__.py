"""Scenes: images with camera poses and intrinsics, in the layouts of 3-D vision."""

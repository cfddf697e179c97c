"""Cameras: intrinsics, distortion, and windows of images."""

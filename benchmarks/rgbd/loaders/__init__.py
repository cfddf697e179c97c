"""The loaders of RGB-D clips, one small file each; see `benchmarks.tartanair.loaders`.

The kind of each says how often it resizes a frame.
"""

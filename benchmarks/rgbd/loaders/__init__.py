"""The loaders of RGB-D clips, one small file each; see `benchmarks.tartanair.loaders`.

Each says in its note how often it resizes a frame: once, or once for every clip that it is in.
"""

"""The loaders of clips of sound, one small file each; see `benchmarks.tartanair.loaders`."""

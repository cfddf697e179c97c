"""Clips: windows of features, tables of clips and samples, lists of frames, transforms, depth."""

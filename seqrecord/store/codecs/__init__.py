"""Codecs: presets, lookup in a closed list, decoding into buffers of known size."""

"""Video: groups of pictures (GOPs), encoded and decoded with PyAV, imported at first use."""

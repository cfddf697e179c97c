"""Tables of samples, lists of frames, depth."""

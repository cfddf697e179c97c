"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

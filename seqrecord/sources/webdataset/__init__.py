"""WebDataset's tar files."""

"""Source for WebDataset's tar files."""

"""Video: groups of pictures, encoded and decoded by PyAV, which is imported when it is used."""

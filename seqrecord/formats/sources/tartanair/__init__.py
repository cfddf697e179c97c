"""TartanAir, versions 1 and 2."""

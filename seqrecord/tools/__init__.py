"""What people call by hand: the command line, pictures, bench."""

"""Tools of the developers: mutants."""

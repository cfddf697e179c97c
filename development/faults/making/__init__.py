"""Makes the bank: `mutants` from drawn changes, `repairs` from git's history, and `outcomes`."""

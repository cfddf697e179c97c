"""Cases of each source format, one module per format.

A module defines `CASES`, by name; `tests/formats/all_cases.py` collects them. Importing one module
imports no other format's packages: `make test-lowest` has an environment where h5py cannot be
imported.
"""

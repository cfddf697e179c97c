"""A bank of faults: says which of them a set of tests notices.

`python -m development.faults --tests PATHS`, or `make faults`. The modules in the order of their
work: `bank` (the faults), `anchoring` (their text in today's code), `recording` (the lines run by
each test), `covering` (the tests of a fault), `trying` and `comparing`. `making` adds faults.
"""

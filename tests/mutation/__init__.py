"""Changes the package in small ways, one at a time, and asks whether a fast test notices.

`python -m tests.mutation`, or `make mutants`. The modules in the order in which they work:
`changes` (what may be changed in a module), `drawing` (which changes of a room are tried),
`instrumenting` and `recording` (which test runs which line), `covering` (the tests of a change),
`running` (pytest in a fork), `trying` (all changes, two at a time) and `report`.
"""

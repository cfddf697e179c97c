"""Mutation testing: changes the package in small ways and runs fast tests on each change.

`python -m development.mutation`, or `make mutants`. The modules in the order of their work:
`changes` (all possible changes of a module), `drawing` (random choice of changes),
`instrumenting` and `recording` (the lines run by each test), `covering` (the tests of a change),
`running` (pytest in a fork), `trying` (all changes, two at a time) and `report`.
"""

"""Recipes: mixes of datasets from a file, and their summary.

Read first, in this order:

- `mix_file`: from a YAML file to the sources and arguments of a mix.
- `values`: windows, steps and other values of a file as arguments of loaders.
- `yaml_file`: YAML with the line of each key, for errors.
- `summary`: sources, shares and features of a mix, as `seqrecord info mix.yaml` prints them.

May import: `store`, `loader`. Tests: `make test-part PART=recipes`.
"""

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More processes than cores, because tests wait half of the time. A crashed process is a failure:
# pytest-xdist 3.8 may wait forever for its replacement.
PYTEST := $(BIN)/python -m pytest -n $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 ))) --maxprocesses 6 --max-worker-restart 0
DEMO := demo
BENCH := bench
BENCH_ENV := $(VENV)/bench
BENCH_PYTHON = $(firstword $(wildcard $(BENCH_ENV)/bin/python) $(BIN)/python)
INSTALLED := $(VENV)/installed
SERVICES := tests/kit/services/node_modules
LEROBOT := $(VENV)/lerobot
LEROBOT_PYTHON ?= python3.12
LEROBOT_RELEASE ?= ==0.6.1
LEROBOT_TOOLS := build/lerobot-tools$(subst ==,-,$(LEROBOT_RELEASE))
LOWEST := build/lowest
RELEASE := build/release
OWN := layers or docs or messages or simulation or kill or power_loss or two_writers or leaving or stopping \
	or hostile or fuzz or mix or subclasses or recovery or rewriting \
	or merge or put or retrying or sequences or test_engine or test_epoch_plans or test_elastic or test_resident \
	or test_shared_memory or test_distributed or test_rotating_starts or test_memory or test_crops or test_cache \
	or test_options or test_frames_in_memory or test_mistakes or test_declared
# Loops over cases that the lowest OpenEXR cannot write, and URLs that the lowest huggingface_hub logs.
OWN += or (test_image_files and (test_refused or cut_or_gone)) or locations_and_options_that_are_wrong
# CI runs random shares of the tests that take longest: SHARE='--share 0.25 --share-seed COMMIT'
SHARE :=
PARTS := store, loader, camera, companions, frame_cache, recipes, video, in_place, cloud, formats, robots, cuda, tools

.PHONY: help install install-bench install-ffcv lerobot-env bench bench-results bench-lerobot bench-training services demo lowest lerobot-tools test-lerobot quick test test-part test-removal test-slow test-services test-others test-benchmarks test-torchcodec test-peers test-lowest test-all mutants faults simulate docs check format release clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/' | expand -t 16

install: $(INSTALLED) ## Install the package and its tools into .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,azure,blobfile,s3,gs]'
	@touch $@

lowest: $(LOWEST)/installed ## Make a Python in build/lowest that has the lowest versions of pyproject.toml

# Packages that conflict with the others have a Python of their own, which finds the others last.
$(LOWEST)/installed: pyproject.toml constraints.txt tests/project/lowest.py $(INSTALLED)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/python -m tests.project.lowest $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOWEST)/all.txt
	$(PYTHON) -m venv --clear $(LOWEST)/apart
	$(LOWEST)/apart/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOWEST)/apart.txt
	$(LOWEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(LOWEST)/apart/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-others.pth
	@touch $@

services: $(SERVICES)/installed ## Install Azurite, the Azure Blob service of the tests; needs npm

$(SERVICES)/installed: tests/kit/services/package.json tests/kit/services/package-lock.json
	cd tests/kit/services && npm ci --loglevel=error
	@touch $@

install-bench: $(BENCH_ENV)/installed ## Install the loaders to compare with, in .venv/bench; 2 GB

# A Python of its own, because some loaders need other versions than the tests. It finds the packages
# of .venv last, and pip installs none of them again.
$(BENCH_ENV)/installed: pyproject.toml constraints.txt benchmarks/tartanair/no-deps.txt $(INSTALLED)
	$(PYTHON) -m venv --clear $(BENCH_ENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(BENCH_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-seqrecord.pth
	$(BENCH_ENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[azure,blobfile,bench]'
	$(BENCH_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/tartanair/no-deps.txt
	$(BENCH_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BENCH_ENV)/microsoft-seqrecord seqrecord==0.1.8 # our import name
	@touch $@

install-ffcv: $(BENCH_ENV)/installed ## Install FFCV, which is compiled; needs libopencv-dev, libturbojpeg0-dev and g++
	$(BENCH_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/tartanair/ffcv.txt

lerobot-env: $(LEROBOT)/installed ## Make a Python that has lerobot, for its benchmark; torchcodec needs FFmpeg's libraries

# Search order: its own packages, the stand-in for torchvision, the packages of .venv/bench and .venv.
$(LEROBOT)/installed: benchmarks/lerobot/no-deps.txt benchmarks/lerobot/no-deps-v2.txt $(BENCH_ENV)/installed
	$(PYTHON) -m venv --clear $(LEROBOT)
	$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(LEROBOT)/v2 -r $(word 2,$^)
	for python in $(BENCH_ENV) $(VENV); do \
		$$python/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; done \
		| sed '1i $(CURDIR)/benchmarks/lerobot/stand_in' \
		> $$($(LEROBOT)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-seqrecord.pth
	@touch $@

bench-lerobot: $(LEROBOT)/installed ## Measure against LeRobot, in bench/lerobot; ARGS='--to benchmarks/lerobot' and so on
	$(BENCH_PYTHON) -m benchmarks.lerobot $(BENCH)/lerobot $(ARGS)

bench-training: $(INSTALLED) ## Train beside each loader, in bench/training; ARGS='--rows odometry/*' and so on
	$(BENCH_PYTHON) -m benchmarks.training $(BENCH)/training $(ARGS)

lerobot-tools: $(LEROBOT_TOOLS)/installed $(INSTALLED) ## Let lerobot load, cut, merge, extend and train on an export; 6 GB, needs Python 3.12
	rm -rf $(LEROBOT_TOOLS)/data
	$(BIN)/python -m tests.robots.tools make $(LEROBOT_TOOLS)/data
	HF_HUB_OFFLINE=1 $(LEROBOT_TOOLS)/bin/python -m tests.robots.tools try $(LEROBOT_TOOLS)/data

test-lerobot: $(LEROBOT_TOOLS)/installed ## Compare items with lerobot, and lerobot-train by its reader and by ours, and on a mix; an hour. LEROBOT_RELEASE= takes the newest lerobot
	rm -rf $(LEROBOT_TOOLS)/training
	mkdir $(LEROBOT_TOOLS)/training
	@# Both comparisons run, also if the first one finds a difference.
	$(LEROBOT_TOOLS)/bin/python -m tests.robots.equal $(LEROBOT_TOOLS)/training/equal; items=$$?; \
		$(LEROBOT_TOOLS)/bin/python -m lerobot_policy_seqrecord >$(LEROBOT_TOOLS)/training/contract.json && exit $$items
	$(LEROBOT_TOOLS)/bin/python -m tests.robots.training make $(LEROBOT_TOOLS)/training
	$(LEROBOT_TOOLS)/bin/python -m tests.robots.training check $(LEROBOT_TOOLS)/training
	$(LEROBOT_TOOLS)/bin/python -m tests.robots.training check-mix $(LEROBOT_TOOLS)/training

# One command, so that lerobot's version limits apply to our dependencies too. The plug-in requires
# the version that it was run with, which is not to keep the newest one away.
$(LEROBOT_TOOLS)/installed: integrations/lerobot/pyproject.toml
	$(LEROBOT_PYTHON) -m venv --clear $(LEROBOT_TOOLS)
	$(LEROBOT_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check 'lerobot[dataset,training,diffusion]$(LEROBOT_RELEASE)' \
		-e '.[video]'
	$(LEROBOT_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e integrations/lerobot
	@touch $@

# A run is of one commit, and of a tree without changes. `--section` measures a part of TartanAir's page.
bench: $(INSTALLED) ## Compare loaders on TartanAir, audio and RGB-D, in bench/; ARGS='--resume --workload audio' and so on
	$(BENCH_PYTHON) -m benchmarks.tartanair.compare $(BENCH) $(ARGS)

bench-results: $(INSTALLED) ## Write benchmarks/tartanair/RESULTS.md from the last `make bench`, and the figures of README and docs; ARGS=--keep keeps other workloads
	$(BIN)/python -W ignore -m benchmarks.tartanair.compare.results $(BENCH) $(ARGS)
	$(BIN)/python -W ignore -m benchmarks.prose

demo: $(INSTALLED) ## Render a small TartanAir tree, pack it, verify it, stream it, draw a clip
	$(BIN)/python -m benchmarks.tartanair.demo $(DEMO)

# Keep compiled modules: otherwise each of the 5 runs of CI compiles tests and package for 10 s.
quick test test-part test-removal test-slow test-services test-others test-benchmarks test-lowest test-all: export PYTHONDONTWRITEBYTECODE :=

quick: $(INSTALLED) ## Run one case of each fast test that starts no process; before each push
	$(BIN)/python -m pytest -n $(shell nproc) --maxprocesses 4 --max-worker-restart 0 --dist loadfile -q -r fE --one-case --no-processes --hypothesis-profile=least

test: $(INSTALLED) ## Run the fast tests
	$(PYTEST) --dist loadfile

# The loader's begin with the golden plan and the model, which find most mistakes.
test-part: $(INSTALLED) ## Run the fast tests of a part: PART=store, loader, camera, companions, frame_cache, recipes, video, in_place, cloud, formats, robots, cuda, tools or project
	$(if $(filter loader,$(PART)),$(PYTEST) --dist loadfile tests/loader/test_epoch_plans.py tests/loader/test_combinations.py)
	$(PYTEST) --dist loadfile $(or $(wildcard tests/$(PART)),$(error PART is $(PARTS) or project))

test-removal: $(INSTALLED) ## Use the package without each of its optional parts
	$(PYTEST) --dist worksteal -m '' tests/project/test_removal.py tests/project/test_parts.py

coverage: $(INSTALLED) ## Report the lines that the fast tests execute; builds build/coverage.xml
	$(PYTEST) --dist loadfile --cov=seqrecord --cov-report=term:skip-covered --cov-report=xml:build/coverage.xml

test-slow: $(INSTALLED) ## Run the tests that take minutes, and many examples of each property
	$(PYTEST) --dist worksteal -m '(slow or hypothesis) and not service' --hypothesis-profile=many

# Debian has nginx where only root looks for programs.
test-services test-others test-benchmarks test-all: export PATH := $(PATH):/usr/sbin

test-services: $(INSTALLED) ## Run the tests that need Azurite, moto, nginx or a FUSE mount
	$(PYTEST) --dist worksteal -m service

# Tests that wait and tests that compute overlap in one run.
test-others: $(INSTALLED) ## Run the tests that `make test` leaves out, except those of committed pages: slow tests, tests of services and of benchmarks
	$(PYTEST) --dist worksteal -m '(slow or service or development) and not page' $(SHARE) tests benchmarks/tests development/tests

test-torchcodec: $(INSTALLED) ## Run the tests of decoding with torchcodec; needs FFmpeg's libraries
	$(BIN)/python -c 'import torchcodec.decoders'
	$(PYTEST) --dist worksteal tests/cuda/test_device_video.py

test-peers: $(INSTALLED) ## Run the tests that compare with OpenCV and COLMAP; installs both into .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt opencv-python-headless pycolmap==4.2.1
	$(BIN)/python -c 'import cv2, pycolmap'
	$(PYTEST) --dist worksteal tests/formats/test_scenes.py

test-benchmarks: $(INSTALLED) ## Run the tests in benchmarks/tests and development/tests, also of committed pages
	$(PYTEST) --dist worksteal -m '' $(SHARE) benchmarks/tests development/tests
	$(BIN)/python -W ignore -m benchmarks.pages # names pages whose measured code has changed since

# Old versions use features deprecated by later versions of Python and other packages. OWN leaves out
# tests that use no other package in a way of their own: rules of code, killed processes, damaged files,
# plans and states, and tests of NumPy and torch alone (torch is not the lowest version). One case of
# each test suffices to find a feature that a package lacks.
test-lowest: $(LOWEST)/installed ## Run one case of each fast test with the lowest versions that pyproject.toml allows
	$(PYTEST:$(BIN)/%=$(LOWEST)/bin/%) --dist loadfile --one-case --hypothesis-profile=least -k 'not ($(OWN))' $(SHARE) -W ignore::DeprecationWarning
	$(LOWEST)/apart/bin/python -m pytest -W ignore::DeprecationWarning tests/tools/test_rerun.py tests/formats/test_zarr.py

test-all: $(INSTALLED) ## Run every test
	$(PYTEST) --dist worksteal -m '' --hypothesis-profile=many tests benchmarks/tests development/tests

simulate: $(INSTALLED) ## Run 100,000 histories of commands with interleaved and failing calls; ARGS='--first 100000'
	$(BIN)/python -m tests.tools.simulation $(ARGS)

mutants: $(INSTALLED) ## Count the small changes of the code that no fast test detects; ARGS='--to development/mutation' and so on
	$(BIN)/python -m development.mutation $(ARGS)

faults: $(INSTALLED) ## Count the faults of the bank that tests notice; ARGS='--tests tests/loader --slice 1/6' and so on
	$(BIN)/python -m development.faults $(ARGS)

docs: $(INSTALLED) ## Build the documentation into build/site; a warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: $(INSTALLED) ## Lint, check the format and the types, as CI does
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## Put the code into its format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

release: ## Build sdist and wheel into dist, check them, run the demo with the wheel alone; uploads nothing
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir dist
	$(RELEASE)/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/empty
	$(RELEASE)/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[view]"
	ln -s ../../benchmarks $(RELEASE)/benchmarks # without the package beside it, so that the wheel's is imported
	cd $(RELEASE) && empty/bin/python -m benchmarks.tartanair.demo demo
	awk '/^## \[/ { sections++ } sections == 1' CHANGELOG.md > dist/notes.md

clean: ## Remove the files that make created
	rm -rf $(VENV) $(SERVICES) $(DEMO) $(BENCH) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

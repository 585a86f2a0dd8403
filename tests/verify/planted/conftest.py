"""Each model is made once, when the first test wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.verify.planted.subjects import Subject, subject


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Subject]]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder, known, threads = tmp_path_factory.mktemp("planted"), dict[str, Subject](), torch.get_num_threads()

    def get(name: str) -> Subject:
        if name not in known:
            known[name] = subject(name, folder)
        torch.set_num_threads(1)  # small models lose by a second one
        return known[name]

    yield get
    torch.set_num_threads(threads)

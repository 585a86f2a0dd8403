"""One process that opens a bundle or a source and answers calls, for profilers that watch a whole process.

    python -m vengine.api.alone TARGET --calls 60 --seed 0 [--shape 8x128] [--threads 2]

Without a shape the calls are those of a soak: every shape that the model takes, drawn by the seed.
"""

from __future__ import annotations

import argparse
import sys
from random import Random

from vengine.api.subjects import subject_of
from vengine.api.traffic import traffic
from vengine.cache import default_cache
from vengine.digests import to_json
from vengine.errors import VengineError
from vengine.hardware import machine

_WARM = 2


def alone(target: str, calls: int, seed: int, shape: tuple[int, int] | None, threads: int | None) -> int:
    """Answer `calls` calls in this process; returns how many different shapes they had."""
    from vengine.engines.worker import open_all

    subject = subject_of(target, machine(), threads, default_cache())
    session = open_all(dict(subject.openings), None if subject.plan is None else to_json(subject.plan))
    asked = traffic(subject, session.inputs, (), seed)
    draw = Random(seed)
    shapes = [*asked.familiar, *asked.fresh] if shape is None else [shape]
    met = [asked.usual if shape is None else shape] * _WARM + [draw.choice(shapes) for _ in range(calls)]
    for one in met:
        session.run(asked.feeds(one))
    session.close()
    return len(set(met))


def main() -> int:
    """The command line above."""
    words = argparse.ArgumentParser(prog="vengine.api.alone")
    words.add_argument("target")
    words.add_argument("--calls", type=int, default=60)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--shape", default="")
    words.add_argument("--threads", type=int)
    told = words.parse_args()
    batch, _, length = told.shape.partition("x")
    shape = (int(batch), int(length or 1)) if batch else None
    try:
        alone(told.target, told.calls, told.seed, shape, told.threads)
    except VengineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

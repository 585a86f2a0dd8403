"""Vengine: makes a transformer faster without touching the model, and proves that it still answers the same.

    from vengine import VectorizationOptimizer
    fast = VectorizationOptimizer(optimization_level="balanced").optimize(model, data=texts)
    fast(**inputs)

Importing this package is light: each public name is fetched when it is first used, so that a
process which only runs a bundle never loads torch or onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vengine.api.optimize import optimize
    from vengine.api.optimizer import VectorizationOptimizer
    from vengine.bundle.read import open_bundle as load
    from vengine.errors import VengineError
    from vengine.types import Budget, Settings, Workload

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Settings",
    "VectorizationOptimizer",
    "VengineError",
    "Workload",
    "__version__",
    "load",
    "optimize",
]

_HOME = {
    "Budget": "vengine.types:Budget",
    "Settings": "vengine.types:Settings",
    "VectorizationOptimizer": "vengine.api.optimizer:VectorizationOptimizer",
    "VengineError": "vengine.errors:VengineError",
    "Workload": "vengine.types:Workload",
    "load": "vengine.bundle.read:open_bundle",
    "optimize": "vengine.api.optimize:optimize",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vengine' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOME[name].split(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

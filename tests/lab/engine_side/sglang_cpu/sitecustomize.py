"""Lets SGLang import without CUDA: on a PYTHONPATH, Python runs this file before anything else.

SGLang imports kernel packages at module level that exist for GPUs only, and never calls them on its pure torch path
(`--device cpu --attention-backend torch_native --sampling-backend pytorch`). Hollow modules stand in for them:
every submodule exists and every name in it is a class that does nothing. Installed packages come first.
"""

from __future__ import annotations

import sys
from collections.abc import MutableSequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HOLLOW = frozenset(
    ["cutlass", "deep_gemm", "flashinfer", "modelscope", "quack", "sgl_kernel", "tilelang", "timm", "torchvision"]
)
VERSION = "0.28.0"
"""Newer than what SGLang asks of any of them."""


def _is_private(name: str) -> bool:
    return name.startswith("__")


class _HollowType(type):
    """Of a hollow class, every attribute is its own name: enough for constants and decorators' arguments."""

    def __getattr__(cls, name: str) -> str:
        if _is_private(name):
            raise AttributeError(name)
        return name


class _HollowModule(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if _is_private(name):
            raise AttributeError(name)
        return _HollowType(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in HOLLOW else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = VERSION  # type: ignore[attr-defined]


sys.meta_path.append(_Finder())

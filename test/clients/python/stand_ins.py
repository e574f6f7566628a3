"""Packages that a trainer imports and does not use here (they need a GPU, or are large): any module of them, with any name in it."""

import sys
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Anything(type):
    """A class with every attribute, each of which is another such class."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _StandIns(MetaPathFinder, Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def attribute(name: str) -> object:
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            value = "0.0.0" if name == "__version__" else _Anything(name, (), {})
            setattr(module, name, value)
            return value

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for(*packages: str) -> None:
    sys.meta_path.insert(0, _StandIns(packages))


@dataclass
class SglangServerArgs:
    """Of sglang's ServerArgs, the fields that its clients compare with an external engine's."""

    model_path: str = ""
    host: str = ""
    port: int = 0
    nnodes: int = 1
    node_rank: int = 0
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    enable_memory_saver: bool = False

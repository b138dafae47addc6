"""The tests.

With `TEST_THE_WHEEL` set, `app.locks` is the package `fencelock` that is installed: so the suites of the locks can be
run against the wheel, in an environment without the service.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType


class _Wheel(MetaPathFinder, Loader):
    """Finds the modules of `fencelock` under the names that they have in the repository."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == "app.locks" or name.startswith("app.locks.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.replace("app.locks", "fencelock", 1))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed as `fencelock`, and goes on to be that."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


if os.environ.get("TEST_THE_WHEEL"):
    sys.meta_path.insert(0, _Wheel())

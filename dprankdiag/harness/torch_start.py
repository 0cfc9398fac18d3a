"""Start a rank by the path of this file, in an interpreter that has torch and numpy and needs nothing else of ours.

The package's own folder stays off the path: what is installed beside it belongs to another interpreter.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def find_package() -> None:
    """Let this interpreter import the package that this file is part of."""
    root = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        root.name, root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[root.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, whose modules are no top-level ones
    find_package()
    from dprankdiag.harness.torch_rank import main

    main(sys.argv[1])

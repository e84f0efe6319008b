"""Runs a script in a measured process, or refuses: the packages must come from one checkout.

Started by path, before anything else of the project is on `sys.path`, hence standard library only:

    python -P guard.py CHECKOUT PACKAGES [SCRIPT ARGUMENT ...]

imports each of the comma-separated PACKAGES, exits with status 1 and says why unless all of them came from
the folder CHECKOUT, then runs SCRIPT as asv would have. What is imported once stays imported, so no later
change of `sys.path` by a benchmark suite can put another copy of a package in place.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path


def refusal(package: str, checkout: Path) -> str | None:
    """Import `package`; why it must not be measured as the one of `checkout`, None if it may."""
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        return f"{package} cannot be imported from the checkout {checkout}: {error}"
    # A namespace package has no file, only the folders that it was pieced together from.
    places = [module.__file__] if module.__file__ else list(module.__path__)
    if foreign := [place for place in places if checkout not in Path(place).resolve().parents]:
        return f"{package} was imported from {', '.join(foreign)}, not from the checkout {checkout}"
    return None


def main(arguments: list[str]) -> None:
    """Check the packages, then run the script, if there is one, with its arguments as `sys.argv`."""
    checkout, packages, *script = arguments
    reasons = [refusal(package, Path(checkout).resolve()) for package in packages.split(",")]
    if any(reasons):
        sys.exit("\n".join(f"refused: {reason}" for reason in reasons if reason))
    if script:
        sys.argv = script
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Old import paths that documents showed: they lead to the new ones, with a warning, for one version."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from batchchol._former import FORMER

SCRIPT = """
import sys, warnings
from importlib import import_module
from batchchol._former import FORMER
for former, new in FORMER.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        old = import_module(former)
    module = import_module(new)
    assert old is module and module.__spec__.name == new, former
    assert f"{former} is {new} now" in str(said[-1].message), former
    assert said[-1].category is DeprecationWarning
print(len(FORMER))
from batchchol.sweep import space
from batchchol.tune import space as new
print(space is new, new.__spec__.name)
try:
    import batchchol.sweep.nonsense
except ModuleNotFoundError as error:
    print(error)
"""


def test_an_old_path_is_the_new_module_and_says_so(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python("-W", "ignore", "-c", SCRIPT)
    assert done.stdout.splitlines() == [
        str(len(FORMER)),
        "True batchchol.tune.space",
        "No module named 'batchchol.sweep.nonsense'",
    ], done.stderr


def test_the_warning_is_of_the_line_that_imports(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-W", "always", "-c", "import batchchol\nfrom batchchol.batch import Batch\n")
    assert done.stderr.startswith("<string>:2: DeprecationWarning: batchchol.batch is batchchol.batches.batch now")

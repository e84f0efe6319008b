"""An asv environment that builds and downloads nothing: this interpreter, on a checkout of each commit.

Named in asv.conf.json as the plugin ".batchchol.asv_plugin.checkout" (asv takes a name without the leading dot for
one of its own plugins, and silently ignores it if it is not) and the environment type "checkout".
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from asv import environment, util
from asv.console import log

from batchchol.asv_plugin.samples import FILE_VARIABLE, RUN_VARIABLE, file_name

PACKAGES = ("batchchol", "kernelgen")
GUARD = Path(__file__).resolve().with_name("guard.py")
THIS_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
THIS_RUN = f"{time.time_ns()}-{os.getpid()}"


def checkout_first(variables: dict[str, str], checkout: Path) -> dict[str, str]:
    """A copy of the environment `variables` in which `checkout` precedes every other import path.

    asv removes from `sys.path` what PYTHONPATH put there, unless ASV_PYTHONPATH names it too; entries of an
    ASV_PYTHONPATH that was already set follow the checkout.
    """
    path = os.pathsep.join(filter(None, [str(checkout), variables.get("ASV_PYTHONPATH", "")]))
    return {**variables, "PYTHONPATH": path, "ASV_PYTHONPATH": path}


def samples_file(results: Path, commit: str, environment_name: str) -> Path | None:
    """Where the samples of a commit are recorded: beside its results, in the folder of the machine.

    asv tells an environment nothing of the machine, but begins every run with writing its description into that
    folder: it is the one that was written last. None if there is none.
    """
    written = max(results.glob("*/machine.json"), key=lambda path: path.stat().st_mtime, default=None)
    return written and written.with_name(file_name(commit, environment_name))


class Checkout(environment.Environment):  # type: ignore[misc]
    """The interpreter that asv was started from, importing the project from a checkout of each commit.

    Every process of it is started by `guard`, which refuses to run unless all of `PACKAGES` were imported
    from that checkout.

    Raises
    ------
    EnvironmentUnavailable
        If another Python, or an installed requirement, is asked for.
    """

    tool_name = "checkout"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(
                f"environment 'checkout' runs the Python that asv was started from ({THIS_VERSION}, "
                f"{sys.executable}), got python={python!r}: start asv from that Python, or use 'virtualenv'"
            )
        if requirements:
            raise environment.EnvironmentUnavailable(
                f"environment 'checkout' installs nothing, got the requirements {sorted(requirements)}: "
                "install them beside asv and remove them from 'matrix', or use 'virtualenv'"
            )
        self._checked_commit: str | None = None
        # The base class asks for its own name, made of these two, before it sets them.
        self._python, self._requirements = THIS_VERSION, requirements
        super().__init__(conf, THIS_VERSION, requirements, tagged_env_vars)
        self._results = Path(conf.results_dir).resolve()
        self._checkout = Path(self._build_root, self._repo_subdir or "").resolve()

    @classmethod
    def matches(cls, python: str) -> bool:
        """Whether `python` ("3.12", or a path) is the interpreter that runs asv."""
        return python in (THIS_VERSION, sys.executable)

    @property
    def installed_commit_hash(self) -> str | None:
        """The commit that is checked out and may be measured."""
        return self._checked_commit

    def check_presence(self) -> bool:
        """Whether there is a place to check out into."""
        return os.path.isdir(self._path)

    def _setup(self) -> None:
        os.makedirs(self._path, exist_ok=True)

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Check `commit_hash` out and make sure that the packages are imported from there.

        Raises
        ------
        asv.util.ProcessError
            If they are not. asv marks the commit's benchmarks as failed and continues with the next commit.
        """
        if self._checked_commit == commit_hash:
            return
        self._checked_commit = None
        self.checkout_project(repo, commit_hash)
        self._set_build_dirs(str(self._checkout), None)
        output, _, status = self.run(
            [],
            valid_return_codes=None,
            return_stderr=True,
            redirect_stderr=True,
            display_error=False,
            dots=False,
        )
        if status:
            log.error(f"commit {commit_hash[:8]} is not measured:\n{output.strip()}")
            raise util.ProcessError([str(GUARD)], status, output, "")
        self._checked_commit = commit_hash

    def run(self, args: list[str], **kwargs: Any) -> Any:
        """Run the script `args` under the guard, with the checkout first on the import path."""
        variables = {**kwargs.pop("env", os.environ), **self._global_env_vars}
        if self._checked_commit and (path := samples_file(self._results, self._checked_commit, self.name)):
            # Where the measured process records its samples.
            variables |= {FILE_VARIABLE: str(path), RUN_VARIABLE: THIS_RUN}
        command = [sys.executable, "-P", str(GUARD), str(self._checkout), ",".join(PACKAGES), *args]
        log.debug(f"Running '{' '.join(command)}' in {self.name}")
        return util.check_output(command, env=checkout_first(variables, self._checkout), **kwargs)

"""Git repositories that tests make."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, as an author of no name; an error if it fails."""
    named = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    return subprocess.run(
        ["git", "-C", folder, *named, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()

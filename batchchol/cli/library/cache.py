"""`python -m batchchol cache`: what is in the cache of compiled kernels, and carrying it to another machine."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from batchchol.artifacts.archive import architecture, pack, unpack
from batchchol.artifacts.cache import ArtifactCache
from batchchol.batches.sizes import architectures
from batchchol.cli.library.info import plain
from batchchol.cli.options import add_action, option

_SHOWN, _SHOWN_CHARACTERS = 20, 100


# The path of an entry's payload, its size and the metadata: payloads together may be larger than the memory.
_Entry = tuple[Path, int, Mapping[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(required=True, metavar="action")
    add_action(
        actions,
        "pack",
        _pack,
        option("file", type=Path, help="the file to write, a zip archive"),
        option("--arch", type=architectures, help="only the GPU kernels of these architectures, such as sm_80,sm_90"),
        help="write the compiled kernels to one file",
    )
    add_action(
        actions,
        "unpack",
        _unpack,
        option("file", type=Path, help="a file that `cache pack` wrote, from a source you trust"),
        help="add the kernels of such a file to the cache",
    )
    add_action(actions, "info", _info, help="count what is in the cache")


def run(arguments: argparse.Namespace) -> int:
    """Run one action."""
    return int(arguments.action(arguments))


def _pack(arguments: argparse.Namespace) -> int:
    packed = pack(ArtifactCache(), arguments.file, arguments.arch)
    # Not after an archive that goes to the standard output.
    kept = arguments.file.is_file()
    size = f", {megabytes(arguments.file.stat().st_size)}" if kept else ""
    print(f"{arguments.file}: {packed.entries} entries{size}", file=sys.stdout if kept else sys.stderr)
    if packed.damaged:
        print(f"damaged entries that were left out: {packed.damaged}", file=sys.stderr)
    return 0


def _unpack(arguments: argparse.Namespace) -> int:
    cache = ArtifactCache()
    done = unpack(arguments.file, cache)
    print(f"{cache.folder}: {done.entries} entries taken, {done.newer_here} were there")
    for name, reason in islice(done.refused.items(), _SHOWN):
        print(f"refused {name[:_SHOWN_CHARACTERS]!r}: {reason}", file=sys.stderr)
    if (more := len(done.refused) - _SHOWN) > 0:
        print(f"refused {more:,} more", file=sys.stderr)
    return 1 if done.refused else 0


def _info(_: argparse.Namespace) -> int:
    cache = ArtifactCache()
    found: dict[str, list[_Entry]] = defaultdict(list)
    keys = cache.stored_keys()
    for key in keys:
        if artifact := cache.get(key):
            found[architecture(artifact)].append((artifact.path, len(artifact.data), artifact.metadata))
    print(f"folder    {cache.folder}")
    for arch in sorted(found):
        print(f"{arch:9} {_describe(found[arch])}")
    if damaged := len(keys) - sum(map(len, found.values())):
        print(f"damaged   entries: {damaged}, built again when they are needed")
    return 0


def _describe(entries: list[_Entry]) -> str:
    # A GPU kernel has two records, and kernels of one module share a payload.
    kernels = {(path, str(metadata.get("entry"))) for path, _, metadata in entries}
    payloads = {path: size for path, size, _ in entries}
    compilers = sorted({plain(str(metadata.get("compiler", "unknown"))) for *_, metadata in entries})
    size = megabytes(sum(payloads.values()))
    return f"kernels: {len(kernels)}, files: {len(payloads)}, {size}, {'; '.join(compilers)}"


def megabytes(size: int) -> str:
    """A size in words, such as ``"12.3 MB"``."""
    return f"{size / 1e6:.1f} MB"

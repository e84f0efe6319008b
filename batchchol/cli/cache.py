"""`python -m batchchol cache`: what the cache of compiled kernels has, and carrying it to another machine."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol.arguments import architectures
from batchchol.cache import ArtifactCache

if TYPE_CHECKING:
    from batchchol.cache import Artifact

HELP = "what the cache of compiled kernels has; pack it into one file, unpack it elsewhere"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The three actions."""
    actions = parser.add_subparsers(required=True, metavar="action")
    packing = actions.add_parser("pack", help="write the compiled kernels to one file")
    packing.add_argument("file", type=Path, help="the file to write, a zip archive")
    packing.add_argument(
        "--arch", type=architectures, help="only the GPU kernels of these architectures, such as sm_80,sm_90"
    )
    packing.set_defaults(action=_pack)
    unpacking = actions.add_parser("unpack", help="take the kernels of such a file into the cache")
    unpacking.add_argument("file", type=Path, help="a file that `cache pack` wrote, of somebody you trust")
    unpacking.set_defaults(action=_unpack)
    actions.add_parser("info", help="count what is in the cache").set_defaults(action=_info)


def run(arguments: argparse.Namespace) -> int:
    """Run one action."""
    return int(arguments.action(arguments))


def _pack(arguments: argparse.Namespace) -> int:
    from batchchol.cache_archive import pack

    packed = pack(ArtifactCache(), arguments.file, arguments.arch)
    size = arguments.file.stat().st_size
    print(f"{arguments.file}: {packed.entries} entries, {megabytes(size)}")
    if packed.damaged:
        print(f"damaged entries that were left out: {packed.damaged}", file=sys.stderr)
    return 0


def _unpack(arguments: argparse.Namespace) -> int:
    from batchchol.cache_archive import unpack

    cache = ArtifactCache()
    done = unpack(arguments.file, cache)
    print(f"{cache.folder}: {done.entries} entries taken, {done.newer_here} were there")
    for name, reason in done.refused.items():
        print(f"refused {name!r}: {reason}", file=sys.stderr)
    return 1 if done.refused else 0


def _info(_: argparse.Namespace) -> int:
    from batchchol.cache_archive import architecture

    cache = ArtifactCache()
    found: dict[str, list[Artifact]] = defaultdict(list)
    keys = cache.stored_keys()
    for key in keys:
        if artifact := cache.get(key):
            found[architecture(artifact)].append(artifact)
    print(f"folder    {cache.folder}")
    for arch in sorted(found):
        print(f"{arch:9} {_describe(found[arch])}")
    if damaged := len(keys) - sum(map(len, found.values())):
        print(f"damaged   entries: {damaged}, built again when they are needed")
    return 0


def _describe(artifacts: list[Artifact]) -> str:
    # A GPU kernel has two records, and kernels of one module share a payload.
    kernels = {(artifact.path, artifact.metadata.get("entry")) for artifact in artifacts}
    payloads = {artifact.path for artifact in artifacts}
    compilers = sorted({str(artifact.metadata.get("compiler", "unknown")) for artifact in artifacts})
    size = megabytes(sum(path.stat().st_size for path in payloads))
    return f"kernels: {len(kernels)}, files: {len(payloads)}, {size}, {'; '.join(compilers)}"


def megabytes(size: int) -> str:
    """Such as ``"12.3 MB"``."""
    return f"{size / 1e6:.1f} MB"

"""What two commits would run, compared before anything is measured: code that is equal is not slower."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from batchchol.artifacts import elf
from batchchol.asv_plugin.checkout import PACKAGES

_BUILDING = "batchchol.artifacts"
_DATA = (".json", ".jinja", ".csv", ".toml")
# What the suite's calls reach: the library's public functions and all that they import.
CALLED = ("batchchol", "batchchol.api", "batchchol.backends.cuda.backend", "batchchol.backends.cpu", "kernelgen")


Records = Mapping[str, Sequence[tuple[Path, list[str], str]]]


@dataclass(frozen=True)
class Code:
    """A kernel's machine code in a commit's cache: the file, and the hash of what it runs."""

    path: Path
    fingerprint: str


def launched_alike(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Whether two descriptions of a kernel have the same data and launch, whatever their code."""
    return all(base[name] == head[name] for name in ("layout", "batch", "threads", "nrhs", "lanes", "launch"))


def written_alike(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Whether they have the same source text and flags as well."""
    return launched_alike(base, head) and all(base[name] == head[name] for name in ("text_sha256", "flags"))


def find_code(records: Records, described: Mapping[str, Any]) -> Code | None:
    """The machine code of a kernel that a commit has built, in what `read_records` found; None if it is not there."""
    own = described["flags"]
    for path, flags, source in records.get(described["entry"], ()):
        if source == described["text_sha256"] and flags[len(flags) - len(own) :] == own:
            data = path.read_bytes()
            if path.suffix == ".ptx":
                return Code(path, hashlib.sha256(data).hexdigest())
            return Code(path, elf.fingerprint(data, described["entry"] if path.suffix == ".cubin" else None))
    return None


def read_records(cache_folder: Path) -> Records:
    """Of all kernels in a cache, by their names: the file of the machine code, the flags, the hash of the source."""
    found: dict[str, list[tuple[Path, list[str], str]]] = {}
    for path in sorted(cache_folder.glob("*.json")):
        record = json.loads(path.read_text())
        about = record["metadata"]
        for source in (path.with_suffix(suffix) for suffix in (".c", ".cu")):
            if source.exists():
                digest = hashlib.sha256(source.read_bytes()).hexdigest()
                found.setdefault(about.get("entry", ""), []).append(
                    (cache_folder / record["payload"], about["flags"], digest)
                )
    return found


def building(checkout: Path) -> str:
    """A hash of how a checkout makes machine code from sources: what is equal makes the same of the same."""
    files = sorted(_files(checkout, _BUILDING, (".py",))) or sorted(_files(checkout, PACKAGES[0], (".py",)))
    said = "".join(f"{name} {_meaning((checkout / name).read_bytes())}" for name in files)
    return hashlib.sha256(said.encode()).hexdigest()


def calls_alike(base: Path, head: Path) -> bool:
    """Whether what calls run on the host, and what their kernels are made from, is the same in two checkouts."""
    of_base, of_head = _called(base), _called(head)
    return of_base == of_head and all(_says_the_same(base / name, head / name) for name in of_base)


def _says_the_same(first: Path, second: Path) -> bool:
    one, other = first.read_bytes(), second.read_bytes()
    return one == other or (first.suffix == ".py" and _meaning(one) == _meaning(other))


def _meaning(source: bytes) -> str:
    """What Python code says, without comments and docstrings; what is no Python says itself."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return repr(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value = ast.Constant(None)
    return ast.dump(tree)


def _called(checkout: Path) -> set[str]:
    """The files of all modules that calls may reach, and of all that is no module: tables, templates."""
    reached: set[str] = set()
    seen: set[str] = set()
    pending = [name for root in CALLED for name in _with_parents(root)]
    while pending:
        name = pending.pop()
        path = None if name in seen else _file(checkout, name)
        seen.add(name)
        if path is not None:
            reached.add(str(path.relative_to(checkout)))
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            pending += _named(path.read_bytes(), package)
            pending += [part for folder in _opened(path.read_bytes()) for part in _modules(checkout, folder)]
    return reached.union(*(_files(checkout, package, _DATA) for package in PACKAGES))


@cache
def _named(source: bytes, package: str) -> frozenset[str]:
    """What a module of a package imports of the project's own, or may by a name in a text."""
    names: set[str] = set()
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value.partition(":")[0])
    ours = (name for name in names if name.split(".")[0] in PACKAGES)
    return frozenset(part for name in ours for part in _with_parents(name))


@cache
def _opened(source: bytes) -> frozenset[str]:
    """The packages of which a module may import any module, by a text such as f"batchchol.cli.{name}"."""
    texts = (node.values[0] for node in _nodes(source) if isinstance(node, ast.JoinedStr) and node.values)
    begun = (text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))
    return frozenset(text[:-1] for text in begun if text.split(".")[0] in PACKAGES and text.endswith("."))


def _nodes(source: bytes) -> Iterator[ast.AST]:
    try:
        return ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return iter(())


def _modules(checkout: Path, package: str) -> Iterator[str]:
    for name in _files(checkout, package, (".py",)):
        yield ".".join(Path(name).with_suffix("").parts).removesuffix(".__init__")


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _file(checkout: Path, name: str) -> Path | None:
    place = checkout.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _files(checkout: Path, package: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    for path in checkout.joinpath(*package.split(".")).rglob("*"):
        if path.suffix in suffixes and path.is_file():
            yield str(path.relative_to(checkout))

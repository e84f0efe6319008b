"""Folders and files that only root and the current user can change: what code may be loaded from.

As ssh does for its keys: each folder on the way from the root must belong to one of the two, and no one else may
write to it. A sticky folder such as /tmp may be on the way, since others cannot replace there what is not theirs; so
may one that a group can write to whose only member is the user (Debian's user private groups).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_ROOT_GROUP = 0
_ROOT = 0
# As /proc has it outside of user namespaces: the first one here, there, and how many.
_EVERY_USER = ["0", "0", "4294967295"]


class Untrusted(ValueError):
    """Who else can change a folder or a file, and what to do; begins with its path."""


def resolve_folder(folder: Path, *, shared: bool = False) -> Path:
    """A folder without symbolic links, after everything on the way to it was looked at; it need not exist yet.

    A `shared` one may be sticky itself: for what has a folder of its own there.

    Raises
    ------
    Untrusted
        If others can change what is in it, or put another folder in its place.
    OSError
        If it cannot be looked at.
    """
    resolved = Path(os.path.realpath(folder))
    for part in (*reversed(resolved.parents), resolved):
        try:
            status = part.lstat()
        except (FileNotFoundError, NotADirectoryError):
            break
        on_the_way = shared or part != resolved
        if status.st_uid not in _trusted_owners(on_the_way):
            raise Untrusted(
                f"{part} belongs to {_name(status.st_uid)}, who can change what is in it: "
                f"chown it to {_name(os.geteuid())}, if it is yours"
            )
        if _writable_by_others(part, status) and not (on_the_way and status.st_mode & stat.S_ISVTX):
            mode = stat.S_IMODE(status.st_mode)
            raise Untrusted(f"others can write to {part} (its mode is {mode:04o}): chmod go-w it, if it is yours")
    return resolved


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file in a folder from `resolve_folder`, read once.

    Raises
    ------
    Untrusted
        If others own it or can write to it, if it is no regular file, or larger than `most` bytes.
    OSError
        If it cannot be read.
    """
    # Opening a pipe waits for its writer unless it is told not to.
    with open(path, "rb", opener=lambda name, mode: os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(f"{path} is no regular file")
        if status.st_uid not in _trusted_owners() or _writable_by_others(path, status):
            raise Untrusted(f"{path} can be changed by others")
        data = stream.read(most + 1)
    if len(data) > most:
        raise Untrusted(f"{path} is larger than {most:,} bytes")
    return data


def _trusted_owners(on_the_way: bool = False) -> set[int]:
    owners = {_ROOT, os.geteuid()}
    return owners | _owners_without_a_name() if on_the_way else owners


def _owners_without_a_name() -> set[int]:
    """The user that the machine's root appears as in a container that maps only some users; none elsewhere."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == _EVERY_USER:
            return set()
        return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError):
        return set()


def _writable_by_others(path: Path, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(path, status.st_gid)


def _is_private_group(path: Path, number: int) -> bool:
    """Whether only root and the user are in a file's group: root's, or the one that has the user's name."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    own = number == _ROOT_GROUP or (group.gr_name == user.pw_name and number == user.pw_gid)
    return own and set(group.gr_mem) <= {user.pw_name, "root"} and not _has_access_list(path)


def _has_access_list(path: Path) -> bool:
    """Whether an access list may allow more users to write than the mode does."""
    try:
        return "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False)
    except OSError:
        return False


def _name(user: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"

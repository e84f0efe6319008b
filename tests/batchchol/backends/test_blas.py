"""Holding BLAS to fewer threads: holders at the same time share a limit, and the last one restores the setting."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from batchchol.backends import blas


@dataclass
class Library:
    """What threadpoolctl knows of one."""

    threads: int
    broken: bool = False

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads
        if self.broken:
            self.broken = False
            raise KeyboardInterrupt


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> tuple[Library, ...]:
    found = Library(8), Library(2)
    monkeypatch.setattr(blas, "_LIMIT", blas._Limit())
    monkeypatch.setattr(blas, "_libraries", lambda: found)
    return found


def counts(libraries: tuple[Library, ...]) -> list[int]:
    return [library.threads for library in libraries]


def test_what_was_before_comes_back(libraries: tuple[Library, ...]) -> None:
    for most, expected in ((1, [1, 1]), (4, [4, 2]), (100, [8, 2])):
        with blas.at_most(most):
            assert counts(libraries) == expected
        assert counts(libraries) == [8, 2]


def test_the_last_to_leave_puts_it_back(libraries: tuple[Library, ...]) -> None:
    first, second = blas.at_most(1), blas.at_most(4)
    first.__enter__()
    second.__enter__()
    assert counts(libraries) == [1, 1]
    first.__exit__(None, None, None)
    assert counts(libraries) == [1, 1]
    second.__exit__(None, None, None)
    assert counts(libraries) == [8, 2]


def test_an_interrupt_leaves_no_limit_behind(libraries: tuple[Library, ...]) -> None:
    libraries[0].broken = True
    with pytest.raises(KeyboardInterrupt), blas.at_most(1):
        pytest.fail("it came before")
    assert counts(libraries) == [8, 2]
    with pytest.raises(KeyboardInterrupt), blas.at_most(1):
        libraries[0].broken = True
    with blas.at_most(1):
        assert counts(libraries) == [1, 1]
    assert counts(libraries) == [8, 2]


def test_a_forked_child_begins_without_its_parents_limit(libraries: tuple[Library, ...]) -> None:
    with blas.at_most(1):
        blas._LIMIT._begin_in_child()
        assert counts(libraries) == [8, 2]
        with blas.at_most(2):
            assert counts(libraries) == [2, 2]
    assert counts(libraries) == [8, 2]


def test_the_blas_of_scipy_is_found() -> None:
    import scipy.linalg.lapack  # noqa: F401 - which loads it

    blas._libraries.cache_clear()
    for library in blas._libraries():
        assert library.get_num_threads() >= 1

"""Solutions of systems of equations: by matrices, and by their Cholesky factors."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from batchchol.api.arguments import Solved, Wanted, check_on_gpu, check_threads, is_general
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.failures import raise_failures, raise_singular
from batchchol.api.repairs import check_jitter
from batchchol.api.results import (
    AnySolution,
    FactoredSolution,
    RepairedFactoredSolution,
    Solution,
    SolutionLogDeterminant,
    solution_of,
)
from batchchol.api.solves import device_solves, host_solves
from batchchol.api.solves.solve_determinants import by_factors, by_one_kernel, logarithms
from batchchol.backends import DEFAULT_BACKEND, chosen_backend
from batchchol.batches.batch import Batch
from batchchol.batches.checks import flag
from kernelgen import KernelSpec


def solve(
    a: Batch | ArrayLike,
    b: ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    jitter: float | str | None = None,
) -> Any:
    """The solutions x of a x = b, for matrices that are factored and solved by in one kernel.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        The matrices. Of symmetric ones only the lower triangle is used, or the upper one if `upper` is set. Of orders
        above 128 LAPACK solves on the CPU, and cuBLAS on a GPU by the factors that `cholesky` makes there. General
        ones a GPU takes up to order 8192.
    b : array_like, shape (n,), (..., n) or (..., n, nrhs)
        The right-hand sides, of the matrices' dtype; where those are on a GPU, an array of the same GPU and
        library. As in torch.linalg.solve, b has one vector for each matrix if b.ndim == 1 or b.shape ==
        a.shape[:-1]; of a batch (batch, n). Else it has matrices (n, nrhs), which are broadcast with those of `a` by
        NumPy's rules: a matrix for several of them is factored once. (numpy.linalg.solve takes b for a vector only if
        b.ndim == 1. b[..., None] is read alike by all.)
    assume_a : {"pos", "gen"}
        What the matrices are: symmetric positive definite, solved by Cholesky factors, or general, solved by LU
        factors with partial pivoting.
    upper : bool
        Read the upper triangle in place of the lower one. A batch whose triangle is known needs no word.
    backend : str, optional
        For arrays of the host, "cpu" or "cuda"; by default BATCHCHOL_BACKEND, else "cpu". What "cuda" is to solve is
        copied to the GPU and back, in slices if it does not fit there.
    spec : KernelSpec, optional
        The kernel to use, of the operation "posv", of general matrices "gesv".
    math : str, optional
        "ieee", the default, or "fast", as for `cholesky`. A spec has its own.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        As for `factor`, for matrices on a GPU.
    out : array, optional
        Where the solutions go: an array of their shape and dtype, b itself if it has them. Of the host it may share
        memory with a and b in any other way too; on a GPU it may not, and is C-contiguous.
    overwrite_a, overwrite_b : bool
        Whether the memory of `a` and `b` may be used: x is then b's where it can be; `a` is left as it is.
    jitter : float or "auto", optional
        Try matrices that are not positive definite again, with this multiple of their mean diagonal added to the
        diagonal, then with 10 and 100 times as much; "auto" is 1e-6 in float32 and 1e-8 in float64. The others are
        solved by as they are. With it neither `overwrite_b` nor an `out` that is b saves memory: b is needed again.
        Of symmetric matrices alone.

    Returns
    -------
    ndarray, of the shape of b, broadcast
        The solutions, or `out`; of matrices on a GPU an array of the same library.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite, as `cholesky` does, also after what `jitter` added; if a pivot of a
        general one is exactly zero. On a GPU the call waits for the work to know.
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.
    RuntimeError
        If a graph is being recorded in this thread, for a batch on a GPU, which may not be there yet.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Notes
    -----
    The componentwise backward error is at most (3 n + 1) u |L| |L^T| |x|, with L the Cholesky factor of the matrix
    and u the unit roundoff (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.4), where all
    numbers on the way are normal ones; of general matrices (3 n + 1) u P^T |L| |U| |x|, theorem 9.4. Where no kernel
    does both, one factors and another solves by the factors.

    Examples
    --------
    >>> a = np.array([[4.0, 2.0], [2.0, 5.0]])
    >>> print(batchchol.solve(np.stack([a, 2 * a]), np.array([8.0, 12.0])))
    [[1.  2. ]
     [0.5 1. ]]
    """
    x, info, *_ = solve_ex(
        a,
        b,
        assume_a=assume_a,
        upper=upper,
        backend=backend,
        spec=spec,
        math=math,
        threads=threads,
        stream=stream,
        out=out,
        overwrite_a=overwrite_a,
        overwrite_b=overwrite_b,
        jitter=jitter,
    )
    if assume_a == "gen":
        raise_singular(info, "solve_ex")
        return x
    # What the solutions were written over cannot be told from it.
    raise_failures(info, a if out is None else None, upper, "solve_ex")
    return x


@takes_foreign(Solution, SolutionLogDeterminant)
def solve_ex(
    a: Batch | ArrayLike,
    b: ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    jitter: float | str | None = None,
    logdet: bool = False,
    factor: bool = False,
) -> AnySolution:
    """The solutions x of a x = b and LAPACK's info of each matrix; never raises because of the matrices' values.

    As `solve`, with its other errors, but info[m] is 0, or k where the leading minor of order k of matrix m is not
    positive definite: then its solutions have no meaning. A NaN in the triangle that is read counts as not positive.
    Of general matrices it is the first pivot that is exactly zero; those with a NaN have info 0 and NaN in x.
    On a GPU the call returns before the work is done.

    Parameters
    ----------
    logdet : bool
        Return the logarithms of the determinants as well, as `slogdet_ex` does: with b^T x what a Gaussian process
        takes. The kernel that solves finds them on the way, on CPUs up to order 128, on GPUs to 32, in float64 24,
        for C-contiguous right-hand sides that no matrix is broadcast for; else another one does. With `jitter` they
        are of what was solved by. Of symmetric matrices alone. A `spec` is of the operation "posvdet" then.
    factor : bool
        Return the factors as well, as `cholesky_ex` does, for further right-hand sides: one kernel makes them, and
        another solves by them. Of symmetric matrices alone, without `logdet`: that is on their diagonals.

    Returns
    -------
    Solution
        x : ndarray, of the shape of b, broadcast; info : ndarray of int32, of the shape of a without its last two
        axes, of a batch (batch,). On a GPU arrays of the same library.
    SolutionLogDeterminant
        With `logdet`: logabsdet, of the shape of info and the matrices' dtype, NaN where an info is not 0.
    FactoredSolution, RepairedFactoredSolution
        With `factor`: L, (..., n, n), the lower or upper factors; of a batch too an array.
    RepairedSolution, RepairedSolutionLogDeterminant
        With `jitter`: info is that of the last try, and `added`, of its shape and the matrices' dtype, what the
        diagonal of each matrix has more in it: 0 of those that did not fail at first, and of those whose mean
        diagonal is not a positive number, which are not tried again.
    """
    general = is_general(assume_a, upper=upper, jitter=jitter, logdet=logdet, factor=factor)
    flag("overwrite_a", overwrite_a)
    taken = flag("overwrite_b", overwrite_b)
    check_jitter(jitter)
    op = "gesv" if general else "posv"
    wanted = Wanted(op, "a", "matrices", flag("upper", upper), spec, math, threads, stream, out, taken, jitter)
    if flag("factor", factor):
        return _solved_and_factored(a, b, backend, wanted, logdet=logdet)
    if flag("logdet", logdet):
        return _solved_with_logdet(a, b, backend, wanted)
    x, info, added = solutions(a, b, backend, wanted)
    return solution_of(x, info, added)


def _solved_with_logdet(a: Any, b: Any, backend: str | None, wanted: Wanted) -> AnySolution:
    check_threads(wanted.threads)
    if hasattr(a, "__cuda_array_interface__") and not isinstance(a, Batch):
        check_on_gpu(backend)
    found = by_one_kernel(a, b, backend, wanted._replace(op="posvdet"))
    if found is not None:
        return solution_of(*found)
    if wanted.spec is not None:
        raise ValueError(
            f"spec: got a kernel of {wanted.spec.problem.op}, expected None where solutions and determinants are "
            "found apart: with out= on the host, and for right-hand sides that no kernel takes as they lie"
        )
    if wanted.jitter is not None:
        # What is added is the same for both.
        l, info, added, logs = by_factors(a, backend, wanted, logdet=True)
        return solution_of(_by(l, a, b, backend, wanted), info, added, logs)
    # Solutions may be written over the matrices.
    logs = logarithms(a, backend, wanted)
    x, info, _ = solutions(a, b, backend, wanted)
    return solution_of(x, info, None, logs)


def _solved_and_factored(a: Any, b: Any, backend: str | None, wanted: Wanted, *, logdet: bool) -> AnySolution:
    check_threads(wanted.threads)
    if hasattr(a, "__cuda_array_interface__") and not isinstance(a, Batch):
        check_on_gpu(backend)
    for name, got in (("spec", wanted.spec), ("logdet", logdet or None)):
        if got is not None:
            raise ValueError(f"{name}: got {got!r}, expected its default with factor=True")
    l, info, *added = by_factors(a, backend, wanted, logdet=False)
    x = _by(l, a, b, backend, wanted)
    return RepairedFactoredSolution(x, info, added[0], l) if added else FactoredSolution(x, info, l)


def _by(l: Any, a: Any, b: Any, backend: str | None, wanted: Wanted) -> Any:
    """The solutions by the factors of `a`, which are arrays."""
    if isinstance(a, Batch):
        wanted, backend = wanted.of_batch(a, backend), None
    return solutions(l, b, backend, wanted.by_factors())[0]


@takes_foreign()
def cho_solve(
    L: Batch | ArrayLike,
    b: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_b: bool = False,
) -> Any:
    """The solutions x of A x = b, given the Cholesky factors L of the matrices A = L L^T.

    Parameters
    ----------
    L : Batch, or array_like of shape (..., n, n), float32 or float64
        The factors, such as `factor(batch).L` or `cholesky(a)`. Only the lower triangle is used, or the upper one.
    b : array_like, shape (..., n) or (..., n, nrhs)
        One right-hand side for each matrix, or nrhs of them, of the factors' dtype; of a batch (batch, n) or
        (batch, n, nrhs). Broadcast as by `solve`. Where the factors are on a GPU, an array of the same GPU and
        library.
    upper : bool
        The factors are U with A = U^T U. A batch whose triangle is known needs no word.
    backend : str, optional
        For arrays of the host, "cpu" or "cuda"; by default BATCHCHOL_BACKEND, else "cpu". What "cuda" is to solve is
        copied to the GPU and back.
    spec : KernelSpec, optional
        The kernel to use, of the operation "potrs".
    math : str, optional
        "ieee", the default, or "fast", which may take denormals for zeros. A spec has its own.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        As for `factor`, for factors on a GPU.
    out, overwrite_b : optional
        As for `solve`.

    Returns
    -------
    ndarray, of the shape of b, broadcast
        The solutions, or `out`; of factors on a GPU an array of the same library, still being written on the
        stream.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.
    RuntimeError
        If a graph is being recorded in this thread, for a batch on a GPU, which may not be there yet.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Notes
    -----
    The componentwise backward error is at most (3 n + 1) u |L| |L^T| |x|, with u the unit roundoff (Higham, "Accuracy
    and Stability of Numerical Algorithms", theorem 10.4), where all numbers on the way are normal ones. Kernels
    multiply by the reciprocals of diagonal elements, which are normal for factors of matrices. Factors are not
    checked: of one whose diagonal has a zero, such as that of a matrix with an info other than 0, the solution is
    infinite, NaN or meaningless; its neighbours are as they would be without it.

    Examples
    --------
    >>> l = np.array([[2.0, 0.0], [1.0, 2.0]])
    >>> print(batchchol.cho_solve(l, np.array([8.0, 12.0])))
    [1. 2.]
    """
    if isinstance(L, tuple) and L and isinstance(L[-1], bool):
        raise TypeError("L: got SciPy's pair (c, lower), expected c alone, with upper=True unless it is lower")
    taken = flag("overwrite_b", overwrite_b)
    wanted = Wanted("potrs", "L", "factors", flag("upper", upper), spec, math, threads, stream, out, taken)
    return solutions(L, b, backend, wanted)[0]


def solutions(matrices: Any, b: Any, backend: str | None, wanted: Wanted) -> Solved:
    """The solutions by matrices or factors, where they are, the info of matrices, and what repaired them."""
    check_threads(wanted.threads)
    if isinstance(matrices, Batch):
        return _by_batch(matrices, b, backend, wanted)
    if hasattr(matrices, "__cuda_array_interface__"):
        check_on_gpu(backend)
        return device_solves.solved(matrices, b, wanted)
    return host_solves.by_array(matrices, b, chosen_backend(backend) or DEFAULT_BACKEND, wanted)


def _by_batch(batch: Batch, b: Any, backend: str | None, wanted: Wanted) -> Solved:
    wanted = wanted.of_batch(batch, backend)
    return (
        host_solves.by_batch(batch, b, wanted) if batch.backend == "cpu" else device_solves.solved(batch, b, wanted)
    )

"""The points of a sweep on many machines, by dask.distributed."""

from batchchol.errors import BatchcholError, install

try:
    import distributed  # noqa: F401 (what every module here needs)
except ImportError as error:
    raise BatchcholError(f"--cluster: dask.distributed cannot be used ({error}): {install('cluster')}") from error

"""The points of a sweep on many machines, by dask.distributed."""

from batchchol.errors import optional

# Every module here needs it.
optional("distributed", "--cluster", "cluster")

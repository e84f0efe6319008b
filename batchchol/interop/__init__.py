"""The library in other people's programs, for their arrays and by their rules: a module for each library.

`batchchol.interop.torch` has operators of PyTorch, `batchchol.interop.jax` calls of JAX. Nothing below imports from
here, and this imports nothing.
"""

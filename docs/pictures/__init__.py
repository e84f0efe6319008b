"""The pictures of docs/method.md, drawn from the layouts and tile programs of kernelgen."""

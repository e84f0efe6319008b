"""What the warps of a GPU have in registers and shared memory, one file a way of staging."""

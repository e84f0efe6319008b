"""A GPU's clock, its ceilings, and what its driver reports of clocks and temperature."""

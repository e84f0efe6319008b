"""Commands that measure: the main job, tuning, comparisons, and what their data say."""

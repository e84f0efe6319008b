"""The numbers that pages publish: each is a claim, with a case, conditions, a value, and the data that it comes from.

`docs/claims.toml` lists them. `python -m batchchol.report.claims` renders them into the pages; `--check` has the exit
status 1 if a page is not what the data say, and `--list` shows each claim with its value and where it comes from.
"""

"""Observations to claims: one file a cause, whose docstring is its user page."""

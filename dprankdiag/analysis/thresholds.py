"""What is worth a claim, where several measurements share the bound."""

LEAST_WORK_SHARE = 0.01

WORK_PRIOR_SD = 0.03

BURST_LEAST = 3.0
"""A single step must exceed what is worth a claim over a run of steps this many times to count as an event."""

"""What is worth a claim, where several measurements share the bound."""

LEAST_WORK_SHARE = 0.01

WORK_PRIOR_SD = 0.03

SPEED_PRIOR_SD = 0.008
"""Healthy chips of one model differ by 2–4 % end to end, a standard deviation near 1 % (DESIGN 2.1, rule 16)."""

BURST_LEAST = 3.0
"""A single step must exceed what is worth a claim over a run of steps this many times to count as an event."""

IDLE_CHANCE = 1e-6
"""Chance at which requests spread at random leave so many ranks without any."""

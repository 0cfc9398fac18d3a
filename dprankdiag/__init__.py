"""Name the rank that holds a lockstep MoE deployment back, why it does, and what that costs."""

__version__ = "0.1.0"

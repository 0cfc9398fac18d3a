"""What if: the measured step graph replayed with claims undone."""

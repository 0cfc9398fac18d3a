"""The embedded record and the bundle: what was learned, kept for later."""

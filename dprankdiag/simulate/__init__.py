"""What if: the measured step graph with claims undone, and a serving world whose requests can be routed anew."""

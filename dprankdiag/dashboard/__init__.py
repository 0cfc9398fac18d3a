"""Screens that fetch from a provider and call a figure."""

"""Worlds whose truth is known, written apart from everything they test."""

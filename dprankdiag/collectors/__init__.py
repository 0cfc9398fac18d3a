"""Live ledgers to tables: one file an interface."""

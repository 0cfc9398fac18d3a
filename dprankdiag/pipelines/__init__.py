"""The recipes, and the only place where stages meet."""

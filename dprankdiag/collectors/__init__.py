"""Live ledgers: one file an interface, each a pure `parse` and a path to ask for; `fetch` asks them."""

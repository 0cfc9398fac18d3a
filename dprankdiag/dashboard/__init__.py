"""The screens: what a provider holds, page by page, in a browser."""

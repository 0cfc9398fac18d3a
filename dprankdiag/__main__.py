"""Run the command line with ``python -m dprankdiag``."""

from dprankdiag.cli import main

if __name__ == "__main__":
    main()

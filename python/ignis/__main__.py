"""`python -m ignis` is the `ignis` command."""

import sys

from ignis.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

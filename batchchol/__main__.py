"""`python -m batchchol`."""

import sys

from batchchol.cli import main

if __name__ == "__main__":
    sys.exit(main())

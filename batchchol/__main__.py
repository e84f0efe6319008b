"""`python -m batchchol`."""

import signal
import sys

from batchchol.cli import main

if __name__ == "__main__":
    status = main()
    # All that is left is the interpreter's own end: a Ctrl-C in there only makes tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)

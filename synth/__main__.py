"""`python -m synth`: the command line where no script is installed."""

import sys

from synth.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

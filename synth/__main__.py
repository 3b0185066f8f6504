"""`python -m synth`: the command line where no script is installed."""

import os
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()) and not os.path.samefile(HERE, os.getcwd()):
    del sys.path[0]  # files of the current folder are data, not modules

from synth.cli.main import main  # noqa: E402 - after the path is safe

if __name__ == "__main__":
    sys.exit(main())

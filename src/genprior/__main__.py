"""``python -m genprior``: the command line where the script ``genprior`` is not on the path."""

import sys

from genprior.cli import main

if __name__ == "__main__":
    sys.exit(main())

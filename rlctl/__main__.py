"""`python -m rlctl`."""

import sys

from rlctl.cli import main

sys.exit(main())

"""`python -m rlzoo`."""

import sys

from rlzoo.cli import main

sys.exit(main())

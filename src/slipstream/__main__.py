"""`python -m slipstream` is the command line."""

import sys

from slipstream.cli.app import main

sys.exit(main())

"""`python -m pgcli` is the command `pgcli`."""

import sys

from pgcli.cli.app import main

sys.exit(main())

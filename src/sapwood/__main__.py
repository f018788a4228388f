"""`python -m sapwood` is the `sapwood` command."""

import sys

from sapwood.cli.main import main

sys.exit(main())

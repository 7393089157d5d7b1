"""``python -m torchkiln``: the command ``torchkiln``."""

from torchkiln.cli import main

raise SystemExit(main())

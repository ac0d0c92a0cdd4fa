"""`python -m bare`: see `bare.cli`."""

from bare.cli import main

raise SystemExit(main())

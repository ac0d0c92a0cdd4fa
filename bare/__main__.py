"""Runs the command `python -m bare`, which `bare.cli` implements."""

from bare.cli import main

raise SystemExit(main())

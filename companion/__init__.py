"""Companion: uses the compiled modules of the package `stream-node-speedups`, where it is installed and fits.

The first import of this package decides for the whole process. Each package that has modules with a compiled form
imports it in its `__init__.py`, before any of these modules. So the decision is the same for all of them, whichever
package a program imports first.

- `companion.loading` decides, says why compiled modules are not used, and makes Python find them.
- `companion.fingerprint` computes the fingerprint of the sources from which modules were compiled.
- `companion.native` has what compiled source needs from the compiler.

This package has no compiled modules, and depends on no other package.
"""

from companion.loading import COMPANION, Companion
from companion.version import VERSION

__all__ = ["COMPANION", "VERSION", "Companion"]

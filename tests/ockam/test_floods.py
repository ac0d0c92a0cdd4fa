"""Goal: no attack ends a node, takes more memory than its bounds allow, or shuts a good client out for long.

Method: `tests/ockam/floods.py`, one attack after the other, each on a node of its own. The bounds are wide, since
machines are shared; the figures are printed by the module itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ockam.floods import ATTACKS, measure

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MIB_MAX = 512


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
def test_a_good_client_goes_on_and_memory_is_bounded(name: str) -> None:
    result = measure(name, ROOT, after_s=10.0)
    assert result.during.pushes > 0
    assert result.after.pushes > 0
    assert result.most_mib < MEMORY_MIB_MAX, result

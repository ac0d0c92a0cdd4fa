"""Goal: no attack ends a node, takes more memory than its bounds allow, or shuts a good client out for long.

Method: `tests/ockam/floods.py`, one attack after the other, each on a node of its own and in processes of its own. The
bounds are wide, since machines are shared; the figures are printed by the module itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.ockam.floods import ATTACKS, Measured

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MIB_MAX = 512
WAIT_MS_MAX = 15_000.0
"""Of one push while the attack lasts."""
ATTACK_S_MAX = 180
AFTER_S = 5.0


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
def test_a_good_client_goes_on_and_memory_is_bounded(name: str) -> None:
    command = [sys.executable, "-m", "tests.ockam.floods", "--only", name, "--after-s", str(AFTER_S)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=ATTACK_S_MAX, check=True)
    result = msgspec.json.decode(done.stdout, type=Measured)
    assert result.during.pushes > 0, result
    assert result.after.pushes > 0, result
    assert result.during.most is not None, result
    assert result.during.most < WAIT_MS_MAX, result
    assert result.most_mib < MEMORY_MIB_MAX, result

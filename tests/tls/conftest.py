"""An authority with certificates for all tests of TLS, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tls.keys import Keys


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def own_keys(tmp_path: Path) -> Keys:
    """For a test that replaces files."""
    return Keys(tmp_path)

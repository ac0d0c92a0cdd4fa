"""One S3 server for all tests of stores; each test uses a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3_server import S3Server, running_s3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="moto, of the extra `store-tests`, is not installed")
    with running_s3() as server:
        yield server

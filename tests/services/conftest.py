"""Clusters and a gateway that the tests of one file share, or have to themselves."""

from collections.abc import Iterator

import pytest

from tests.etcd import BINARIES
from tests.services.site import Site, site


@pytest.fixture(scope="module", params=BINARIES)
def shared(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Three clusters of each version, for tests that leave them as they are."""
    with site(request.param) as running:
        yield running


@pytest.fixture(scope="module", params=BINARIES)
def single(request: pytest.FixtureRequest) -> Iterator[Site]:
    """One cluster of each version behind the gateway."""
    with site(request.param, ("main",)) as running:
        yield running


@pytest.fixture
def own() -> Iterator[Site]:
    """Three clusters of the default version, for tests that stop them."""
    with site() as running:
        yield running

"""Fixtures of the tests of Remediations."""

import pytest

from execute.living import new_store
from gpuwatch.act.remediations import RemediationStore


@pytest.fixture
def store() -> RemediationStore:
    return new_store()

"""Real hosts for their adapters. `make test-hosts` installs them; without them these tests are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `tests_hosts_support`


@pytest.fixture(scope="session")
def cluster():
    """A small Ray cluster on this machine, for the whole run."""
    ray = pytest.importorskip("ray")
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20, runtime_env=here)
    yield ray
    ray.shutdown()


@pytest.fixture
def by_value(request):
    """Lets classes of a test module travel to Ray's workers, which cannot import it."""
    cloudpickle = pytest.importorskip("ray").cloudpickle
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)

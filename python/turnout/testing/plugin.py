"""A pytest fixture: `pytest_plugins = ["turnout.testing.plugin"]` in a conftest.py, or `-p turnout.testing.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnout.testing import check_policy as _check_policy

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def check_policy() -> Callable[..., None]:
    """`turnout.testing.check_policy`, without an import.

    Example:
        A test of your own policy::

            def test_my_policy_keeps_the_laws(check_policy):
                check_policy(MyPolicy, examples=200)
    """
    return _check_policy

"""The user's function of the tests: the workload is the sample's source."""

from __future__ import annotations


def describe(request_id, fields):
    del request_id
    return {"workload": fields["data_source"]} if "data_source" in fields else {}

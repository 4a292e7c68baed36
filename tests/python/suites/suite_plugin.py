"""A plugin of pytest that run.py loads: it writes a line as each test begins and ends.

The lines survive a test that ends the process. GPUPOOL_SUITE_RESULTS names the file for them.
"""

import json
import os

import pytest


def note(**fields):
    with open(os.environ["GPUPOOL_SUITE_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


# Numba's own fixture of this name is in its source tree only, not in its package.
@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    if request.cls is not None:
        request.cls._dump_failed_filechecks = False


def pytest_collectreport(report):
    if report.failed:
        note(test=report.nodeid, outcome="failed", text=report.longreprtext)


def pytest_runtest_logstart(nodeid):
    note(test=nodeid, outcome="begun")


def pytest_runtest_logreport(report):
    # A test can also fail, or be skipped, as it is set up, and fail as it ends.
    if report.when == "call" or report.outcome != "passed":
        outcome = "expected to fail" if hasattr(report, "wasxfail") else report.outcome
        note(test=report.nodeid, outcome=outcome, text=report.longreprtext)

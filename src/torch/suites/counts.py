"""Counts tests while they run, so that a suite which is stopped still says how far it came.

    pytest -p counts …            writes a line for each test to the file that COUNTS names
    counts.py FILE NAME PASSED [FAILED]    prints the suite's line, and fails if it fell short
"""

import os
import sys

_outcomes = {}


def pytest_runtest_logreport(report):
    """A test's outcome: a failure of its set-up or its end is one of its own."""
    before = _outcomes.get(report.nodeid)
    outcome = "failed" if "failed" in (before, report.outcome) else report.outcome
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = outcome
    if report.when == "teardown":
        with open(os.environ["COUNTS"], "a", encoding="utf-8") as file:
            file.write(f"{_outcomes.get(report.nodeid, 'passed')} {report.nodeid.split('::', 1)[-1]}\n")


def pytest_sessionfinish(session, exitstatus):
    """All of them ran, and were collected without an error."""
    if exitstatus in (0, 1):
        with open(os.environ["COUNTS"], "a", encoding="utf-8") as file:
            file.write("all\n")


def main(file, name, wanted, allowed=0):
    """Prints what the file says; gives the exit status."""
    try:
        with open(file, encoding="utf-8") as lines:
            said = [line.rstrip("\n").split(" ", 1) for line in lines]
    except OSError:
        said = []
    counts = {outcome: sum(one[0] == outcome for one in said) for outcome in ("passed", "failed", "skipped")}
    for outcome, *test in said:
        if outcome == "failed":
            print(f"{name}: failed: {test[0]}")
    is_whole = ["all"] in said
    is_short = counts["passed"] < wanted or counts["failed"] > allowed or not is_whole
    why = f"; at least {wanted} are to pass" if counts["passed"] < wanted else ""
    why += f"; at most {allowed} are to fail" if counts["failed"] > allowed else ""
    if counts["passed"] > wanted and not is_short:
        more = counts["passed"] - wanted
        print(f"{name}: passed more than are asked for: raise that number by {more}, or as many may go unseen")
    why += "" if is_whole else "; it was stopped before its end"
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{name}: {told}" + (f" (short{why})" if is_short else ""))
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))

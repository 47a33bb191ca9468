"""Reads pytest's report of a suite, prints its line, and fails if it fell short: counts.py REPORT NAME PASSED [FAILED]."""

import sys
import xml.etree.ElementTree


def main(report, name, wanted, allowed=0):
    passed = failed = skipped = 0
    try:
        cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"{name}: no report: {error}")
        return 1
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
            print(f"{name}: failed: {case.get('classname')}.{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    is_short = passed < wanted or failed > allowed
    print(f"{name}: {passed} passed, {failed} failed, {skipped} skipped" + (f" (short of {wanted})" if is_short else ""))
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))

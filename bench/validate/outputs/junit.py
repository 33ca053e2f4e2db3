"""Verdicts as JUnit XML: a suite for each cell, a test case for each check. No times, so equal verdicts give equal
bytes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from bench.base.grouping import grouped
from bench.validate import Judgement
from bench.validate.verdicts.verdict import Verdict

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SKIPPED = ("REFUSED", "EXPIRED", "NO_BASELINE", "INCONCLUSIVE", "XFAIL")
"""Verdicts shown as skipped. Of the others, all but `PASS` and `XPASS` are failures, and so is a run that failed."""
PASSED = ("PASS", "XPASS")


def xml(judgement: Judgement) -> str:
    """Return the JUnit XML document."""
    suites = ElementTree.Element("testsuites", name="bench validate")
    groups = grouped((verdict.cell, verdict) for verdict in judgement.verdicts)
    for cell, verdicts in groups.items():
        _suite(suites, cell, verdicts, judgement.cells.get(cell, {}))
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _suite(parent: ElementTree.Element, cell: str, verdicts: list[Verdict], about: dict[str, str]) -> None:
    failures = sum(v.name not in (*SKIPPED, *PASSED) for v in verdicts)
    skipped = sum(v.name in SKIPPED for v in verdicts)
    counts = {"tests": str(len(verdicts)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    suite = ElementTree.SubElement(parent, "testsuite", {"name": _clean(cell), **counts})
    if about:
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in about.items():
            ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(cell), name=verdict.check)
        if verdict.name in SKIPPED:
            ElementTree.SubElement(case, "skipped", message=_clean(f"{verdict.name}: {verdict.text}"))
        elif verdict.name not in PASSED:
            failure = ElementTree.SubElement(case, "failure", type=verdict.name, message=_clean(verdict.line))
            failure.text = _clean(verdict.text)
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(f"{verdict.name}: {verdict.text}")


def _clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return _UNPRINTABLE.sub("?", text)

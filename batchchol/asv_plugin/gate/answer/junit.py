"""The gate's answer as JUnit XML, which CI systems show.

What makes the exit status other than 0 is red, and nothing else: a case that is slower is a failure of type
"slower", one that is undecided a failure of type "undecided" (nobody has shown that it is not slower), one that
failed an error. What was not compared is skipped, with the reason; what is unchanged by proof has passed.
"""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from batchchol.asv_plugin.gate.answer.words import amount, change, notes, plain, sentence
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Verdict

_ELEMENTS = {
    Verdict.FAILED: "error",
    Verdict.SLOWER: "failure",
    Verdict.UNDECIDED: "failure",
    Verdict.NEW: "skipped",
    Verdict.GONE: "skipped",
    Verdict.SKIPPED: "skipped",
}


def junit(answer: Answer) -> str:
    """The answer as JUnit XML: a test case for each case, and one for the gate as a whole if that failed."""
    cases = [_testcase(outcome) for outcome in answer.outcomes]
    if answer.failure:
        cases.append(Element("testcase", name="gate", classname="gate"))
        SubElement(cases[-1], "error", type="failed", message=plain(answer.failure))
    found = Counter(each.tag for case in cases for each in case)
    numbers = {"name": "batchchol gate", "tests": f"{len(cases)}", "time": f"{answer.seconds:.3f}"}
    numbers |= {"failures": f"{found['failure']}", "errors": f"{found['error']}"}
    suites = Element("testsuites", numbers)
    suite = SubElement(suites, "testsuite", numbers, skipped=f"{found['skipped']}")
    properties = SubElement(suite, "properties")
    for name in ("base", "head", "profile"):
        SubElement(properties, "property", name=name, value=plain(getattr(answer, name)))
    suite.extend(cases)
    SubElement(suite, "system-out").text = "\n".join([sentence(answer), *notes(answer)])
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, "unicode")}\n'


def _testcase(outcome: Outcome) -> Element:
    """A case: asv's name of the benchmark is its class, and its time that of the head's call."""
    key = plain(outcome.key)
    case = Element("testcase", name=key, classname=key.partition("(")[0])
    if outcome.head_seconds is not None and outcome.kind != "track":
        case.set("time", f"{outcome.head_seconds:.9f}")
    if element := _ELEMENTS.get(outcome.verdict):
        child = SubElement(case, element, message=_message(outcome))
        child.text = _message(outcome)
        if element != "skipped":
            child.set("type", outcome.verdict.value)
    else:
        SubElement(case, "system-out").text = _message(outcome)
    return case


def _message(outcome: Outcome) -> str:
    """The message of a failure, such as "slower: +4.8% (+4.1 … +5.5%), 1.2 ms, was 1.1 ms"."""
    numbers = [change(outcome), amount(outcome, outcome.head_seconds)]
    if outcome.base_seconds is not None:
        numbers.append(f"was {amount(outcome, outcome.base_seconds)}")
    said = ", ".join(filter(None, [*numbers, plain(outcome.why)]))
    return f"{outcome.verdict.value}: {said}" if said else outcome.verdict.value

"""python -m spec: checks the protocol; with --drop RULE, shows what happens without a rule."""

from __future__ import annotations

import argparse
import sys
import time

from .checker import Result
from .rules import RULES, Rules
from .scenarios import SCENARIOS


def _list() -> None:
    width = max(map(len, RULES))
    for rule in RULES.values():
        print(f"{rule.name:{width}}  {rule.says}")
        print(f"{'':{width}}  {'without it: ' + rule.scenario if rule.scenario else rule.because}")


def _run(name: str, rules: Rules) -> Result:
    began = time.process_time()
    result = SCENARIOS[name].check(rules)
    took = time.process_time() - began
    verdict = f"VIOLATED: {result.violation}" if result.violation else "holds"
    print(
        f"{name:16} {result.states:7,} states {result.steps:9,} steps  depth {result.depth:3} {took:6.1f} s  {verdict}"
    )
    for number, action in enumerate(result.trace, 1):
        print(f"  {number:3}. {action}")
    sys.stdout.flush()
    return result


def _check(names: list[str]) -> int:
    """Every rule kept: nothing may be found."""
    results = [_run(name, Rules()) for name in names]
    print(f"{sum(result.states for result in results):,} states in {len(results)} scenarios")
    return int(any(result.violation for result in results))


def _drop(name: str, scenario: str | None) -> int:
    """One rule dropped: a counter-example is found where the rule says so."""
    rule = RULES[name]
    print(f"without {name}: {rule.says}")
    if not (scenario or rule.scenario):
        print(f"no counter-example: {rule.because}")
        return 0
    return int(not _run(scenario or rule.scenario, Rules([name])).violation)


def main() -> int:
    """0: as it should be."""
    parser = argparse.ArgumentParser(prog="python -m spec", description="Checks the model of the protocol.")
    parser.add_argument("--list", action="store_true", help="the rules, a sentence each")
    parser.add_argument("--drop", metavar="RULE", choices=list(RULES), help="leave a rule out, and show what happens")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="only this one")
    options = parser.parse_args()
    if options.list:
        _list()
        return 0
    if options.drop:
        return _drop(options.drop, options.scenario)
    return _check([options.scenario] if options.scenario else list(SCENARIOS))


if __name__ == "__main__":
    sys.exit(main())

"""The command. A guard that is to be taken out is taken out before the product is imported."""

from __future__ import annotations

import sys

from .planted import PLANTED
from .planting import plant

OPTION = "--planted="


def _plant() -> None:
    for argument in [argument for argument in sys.argv if argument.startswith(OPTION)]:
        sys.argv.remove(argument)
        bugs = {bug.name: bug for bug in PLANTED}
        bug = bugs[argument.removeprefix(OPTION)]
        plant(bug.file, (bug.code, bug.without), *bug.also)


if __name__ == "__main__":
    _plant()
    from .command import main

    sys.exit(main())

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
        for file, changes in bugs[argument.removeprefix(OPTION)].changes.items():
            plant(file, *changes)


if __name__ == "__main__":
    _plant()
    from .command import main

    sys.exit(main())

"""Writes docs/configuration.md from config.py and core/cluster.py. With --check: exits 1 if it is not current."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from bucketsched import config
from bucketsched.core.cluster import ClusterConstants

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
INTRODUCTION = """# Settings

Flag > environment > file > default. A flag: `--set section.key=value`. The environment:
`BUCKETSCHED_<SECTION>__<KEY>`, for secrets also `…__<KEY>_FILE`. Lists are JSON in both: `--set 'node.roles=["api"]'`
(or `--roles api`). The file: TOML, named by `--config` or `BUCKETSCHED_CONFIG`. `bucketsched config show` prints what
holds, with secrets as stars. A wrong setting stops the start with one line that names it. `bucketsched dev` has only
`--data-dir`, `--grpc-address`, `--http-address`, `--metrics-address`, `--reserve-mib` and `--max-mib`; for all else it
takes the defaults.

```toml
[cassandra]
contact_points = ["10.0.0.1:9042", "10.0.0.2:9042"]

[kafka]
bootstrap = "10.0.0.1:9092"
```

"""


def described() -> dict[tuple[str, str], str]:
    """The docstrings below the fields, by class and field."""
    found = {}
    tree = ast.parse(Path(config.__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(text.value, ast.Constant)
                    found[node.name, field.target.id] = " ".join(str(text.value.value).split())
    return found


def bounds(field: Any) -> str:
    """What is allowed, where it says so in numbers or a pattern."""
    words = [f"`{choice}`" for choice in get_args(field.annotation)] if get_origin(field.annotation) is Literal else []
    for item in field.metadata:
        for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
            if (limit := getattr(item, name, None)) is not None:
                words.append(f"{sign} {limit:,}" if isinstance(limit, int) else f"{sign} {limit:g}")
    return ", ".join(words)


def page() -> str:
    """The whole page."""
    texts, lines = described(), [INTRODUCTION]
    for section, outer in config.Settings.model_fields.items():
        kind: Any = outer.annotation
        lines += [
            f"## `{section}`\n",
            f"{(kind.__doc__ or '').strip()}\n",
            "| key | default | allowed | |",
            "|---|---|---|---|",
        ]
        for key, field in kind.model_fields.items():
            default = getattr(kind(), key)
            default = list(default) if isinstance(default, tuple) else default
            shown = "" if "Secret" in type(default).__name__ else f"`{default}`"
            lines.append(f"| `{key}` | {shown} | {bounds(field)} | {texts.get((kind.__name__, key), '')} |")
        lines.append("")
    lines += [
        "## Constants of a cluster\n",
        "Given once, to `bucketsched admin migrate`, and kept in Cassandra; they can't be changed afterwards.\n",
        "| constant | default |",
        "|---|---|",
    ]
    constants = [f for f in dataclasses.fields(ClusterConstants) if f.default is not dataclasses.MISSING]
    lines += [f"| `{f.name}` | {f.default:,} |" for f in constants]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes, or checks."""
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page():
            print("docs/configuration.md is not current: run python tools/generate_settings.py")
            return 1
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

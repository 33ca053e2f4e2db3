"""The page as one HTML file: live, or with its data inlined. It fetches nothing from other hosts, and its content
security policy forbids it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bench.base.mode_styles import DARK, MODES
from bench.dashboard.board import Piece

HERE = Path(__file__).parent
SCRIPTS = ("charts.js", "graph.js", "run.js", "sweep.js", "page.js")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def live() -> str:
    """Return the page that follows its server."""
    return _render(data="", policy="")


def exported(pieces: Sequence[Piece], root: Path) -> str:
    """Return the page with `pieces` of the runs below `root` inlined, which opens from a file without a network."""
    entries = ",".join(f'{{"kind":{_json(p.kind)},"key":{_json(p.key)},"body":{p.text}}}' for p in pieces)
    # In a script element nothing but its end tag and comments mean anything; `<` within JSON strings may be written so.
    data = f'{{"root":{_json(str(root))},"pieces":[{entries}]}}'.replace("<", "\\u003c")
    return _render(data=data, policy=policy(live()))


def policy(text: str) -> str:
    """Return the content security policy of the page: it may run its own scripts and connect to its own server."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in _SCRIPT.findall(text))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(text: str) -> str:
    return json.dumps(text)


def _render(**values: str) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=select_autoescape(("html", "j2"))
    )
    scripts = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = (HERE / "page.css").read_text(encoding="utf-8").replace(MODES, DARK)
    marked = {name: Markup(text) for name, text in values.items() if name == "data"}
    return environment.get_template("page.html.j2").render(
        scripts=Markup(scripts), style=Markup(style), **{**values, **marked}
    )

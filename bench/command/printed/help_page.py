"""The page of `--help`: usage, the members of each group, and the meaning of each key. Starts neither Hydra nor
torch."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import replace

from omegaconf import OmegaConf

from bench.base.paths import CONF
from bench.command.verbs.listing import presets
from bench.config.flags import FLAGS
from bench.config.key_docs import key_docs, launch_docs
from bench.config.launch_settings import LAUNCHERS, WORD
from bench.models import MODELS
from ddp.backends import BACKENDS
from ddp.core.policies import POLICIES
from ddp.engine import ENGINES
from ddp.engine.modes import modes

USAGE = """\
usage: python -m bench [key=value ...]    train one run; with -m and commas, a sweep of runs
       python -m bench plan [key=value ...]    show what would be trained, and how long that takes
       python -m bench list|doctor|report|validate|more|compare|baseline|rerun|replay|audit|prove [--help]
       python -m bench faults|join|goodput|explain|predict|timeline|dashboard|status|cancel [--help]
"""
SWEEP = "Sweep:    python -m bench -m model=mlp,resnet_graph mode=solo,nccl_cadence seed=0,1,2"
INDENT, NARROWEST, WIDEST = 10, 60, 120


def show() -> None:
    """Print the page."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    print(USAGE)
    print("== Flags ==")
    for names, how in FLAGS.items():
        print(f"{', '.join(names):<24} {how['help']}")
    print("\n== Presets and groups (group=member) ==")
    for group, members in _groups().items():
        print(textwrap.fill(f"{group}: {', '.join(members)}", width, subsequent_indent=" " * INDENT))
    print("\n== Configuration (key=default, type: meaning) ==")
    chosen = _chosen()
    launched = (replace(doc, text=f"With {WORD}={name}: {doc.text}") for name in LAUNCHERS for doc in launch_docs(name))
    for doc in (*key_docs(), *launched):
        print(f"{doc.key}={chosen.get(doc.key, doc.default)}  ({doc.kind})")
        print(textwrap.fill(doc.text, width, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT))
    print(f"\n{SWEEP}\nInspect:  python -m bench mode=cpu_async --cfg job    (also --info, --hydra-help)")


def _groups() -> dict[str, list[str]]:
    """Return group -> the names of its members."""
    members = {"model": list(MODELS), "mode": list(modes()), "experiment": list(presets())}
    members |= {"policy": list(POLICIES), "backend": list(BACKENDS), "engine": list(ENGINES), WORD: list(LAUNCHERS)}
    return {group: sorted(names) for group, names in members.items()}


def _chosen() -> dict[str, str]:
    """Return group -> its default member."""
    defaults = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(defaults, dict)
    return {key: value for each in defaults["defaults"] if isinstance(each, dict) for key, value in each.items()}

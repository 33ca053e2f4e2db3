"""`bench prove` on every model, in every mode, on 1 to 4 ranks, and on three models as a user brings them: reports/proofs.

python -m benchmarks.proofs                      # an hour or more on two cores; what is there is kept
python -m benchmarks.proofs mlp tied --write     # some of them, and the page of all that is there
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.models import MODELS
from bench.prove.provable import provable_modes
from benchmarks.frame import options, run_command, table, write_report
from tests.conformance.test_prove import BROUGHT, OWN, PLAIN

KEPT = Path("runs/proofs")
RANKS = "1,2,3,4"
STEPS, BATCH = 2, 2
HEAD = f"""# Proofs

    python -m benchmarks.proofs --write

`bench prove` compares {STEPS} steps, or averages, of batches of {BATCH} with plain PyTorch on one device, on 1 to 4 ranks.
*Exact*: combinations of model and number of ranks with equal bits. *Close*: those without, and the largest difference
of gradients or parameters. The last {len(BROUGHT)} models are written as a user might, with a parameter that the
loss does not use."""


def prove(name: str) -> int:
    """Prove a model in all modes, where that is not done; return the exit code."""
    KEPT.mkdir(parents=True, exist_ok=True)
    out = KEPT / f"{name}.json"
    if out.is_file():
        return 0
    if name in BROUGHT:
        (KEPT / f"{name}.py").write_text(OWN.format(name=name, **PLAIN | BROUGHT[name]), encoding="utf-8")
    model = str(KEPT / f"{name}.py") if name in BROUGHT else name
    words = (f"model={model}", f"world_size={RANKS}", f"mode={','.join(provable_modes())}")
    options = ("--steps", str(STEPS), "--batch", str(BATCH), "--json", str(out))
    return subprocess.run([sys.executable, "-m", "bench", "prove", *words, *options], check=False).returncode


def row(mode: str, done: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return what came out in one mode, for all models on all numbers of ranks."""
    proofs = [(name, each) for name, body in done.items() for each in body["proofs"] if each["mode"] == mode]
    exact = [each for _, each in proofs if each["verdict"] == "exact"]
    close = [(largest(each), each["precision"].partition(",")[0], f"{name} on {each['ranks']}")
             for name, each in proofs if each["verdict"] == "close"]  # fmt: skip
    others: dict[str, list[str]] = {}
    for name, each in proofs:
        if each["verdict"] not in ("exact", "close"):
            others.setdefault(each["verdict"], []).append(name)
    size, precision, where = max(close, default=(0.0, "", ""))
    return [
        f"`{mode}`",
        f"{len(exact)} of {len(proofs)}",
        f"{len(close)}: {size:.0e} in {precision} ({where})" if close else "-",
        "; ".join(f"{len(names)} {what}: {', '.join(dict.fromkeys(names))}" for what, names in others.items()) or "-",
    ]


def largest(proof: dict[str, Any]) -> float:
    """Return the largest difference of any step."""
    return max((step[key] or 0.0 for step in proof["steps"] for key in ("gradients", "parameters")), default=0.0)


def page(names: Iterable[str]) -> str:
    """Return the page of the models that are proved."""
    done = {name: json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    rows = [row(mode, done) for mode in provable_modes()]
    reasons: dict[str, list[str]] = {}
    for name, body in done.items():
        for each in body["proofs"]:
            if each["verdict"] != "exact" and each["mode"] in provable_modes():
                reasons.setdefault(f"{each['verdict']}: {each['why']}", []).append(
                    f"{name} {each['mode']} {each['ranks']}"
                )
    whole = [
        [name, str(each["ranks"]), *(f"{each[key]:.0e}" for key in ("gradients", "parameters", "loss")), each["why"]]
        for name, body in done.items()
        for each in body["whole_batch"]
    ]
    why = [f"- {reason} ({len(where)} of these)" for reason, where in sorted(reasons.items())]
    headers = ["model", "slices", "gradients", "parameters", "loss", "why"]
    return "\n\n".join(
        [
            HEAD,
            f"Models: {', '.join(done)}.",
            table(rows, ["mode", "exact", "close, at most", "neither"]),
            "Not bit-equal:\n\n" + ("\n".join(why) or "- none"),
            "The slices of ranks against the whole batch at once, largest differences:",
            table(whole, headers),
        ]
    )


def main() -> int:
    """Prove, and print or write the page; return the worst exit code."""
    known = [*MODELS, *BROUGHT]
    parser = options(__doc__, "write reports/proofs/README.md")
    parser.add_argument("names", nargs="*", metavar="MODEL", choices=[[], *known], help="default: all")
    asked = parser.parse_args()
    code = max(prove(name) for name in asked.names or known)
    text = page(name for name in known if (KEPT / f"{name}.json").is_file())
    print(text)
    if asked.write:
        write_report("proofs/README.md", text)
    return code


if __name__ == "__main__":
    run_command(main)

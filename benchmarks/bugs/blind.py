"""Defects written last, by somebody who has not read the checks. The share caught at the first try is reported apart.

How to write one. Take a kind from the histories of other projects, or from what you have seen go wrong yourself. Find the
function of `ddp` (or of `bench.results`) where it would have happened, and put the defect there:

    @BLIND.bug("ddp.replica.replica", "audit", EVERY, "what it breaks, in words", "where the kind comes from")
    def its_name(replica: Module) -> None:
        wrap(replica.Replica, "step", lambda step, self, batch, seen: step(batch, seen + 1.0))

- The first argument names the module; the function gets it right after its import, in every process of a run. It puts
  something in the place of what is there, and adds no names: a test tries that.
- The second is your guess which check fails, of `python -m bench list checks`; with `any`, whatever fails will do.
- The third: the modes of the `ci` experiment that it touches (`EVERY`, `RANKS`, `SYNC`, `AVERAGED`, ...), the best first;
  `models=` if not all three are touched, `times=2` to train a cell twice with one seed, `seeds=(0, 1)` for several.
- The run must end well: what crashes, or does not learn at all, needs no judge.
- `wrap`, `after_init`, `counted`, `rank` and `last` of `benchmarks.bugs.bug` are the tools; other families have examples.

Try it: `python -m benchmarks.bugs its_name`. Then leave it as it is, caught or not; `python -m benchmarks.bugs --family
blind` reports all of them.
"""

from __future__ import annotations

from benchmarks.bugs.bug import Family

BLIND = Family("blind")

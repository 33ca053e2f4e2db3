"""Links that are refused: one error of all ranks, from the records to the result and the terminal."""

from __future__ import annotations

from bench.command.printed.run_lines import trouble_lines
from bench.results.analysis.faults import missing
from bench.validate.records.run_records import Records
from bench.validate.recount.losses import losses
from ddp.core.messages import commands, events
from ddp.core.messages.run_bounds import RunHeader
from tests.bench.streams import make_metrics, make_records, make_spec

SPEC = make_spec("nccl_cadence", 3)
ERROR = "such links can be predicted only"
REFUSED = events.Failed(140.0, 1, ERROR, ERROR, kind="refused")


def test_an_error_of_all_ranks_is_one_row_of_no_rank() -> None:
    records = [*make_records(SPEC)[:99], REFUSED, commands.Abort("failed", f"all ranks: {ERROR}")]
    metrics = make_metrics(SPEC, records, status="failed")
    (fault,) = metrics.faults
    assert (fault.rank, fault.kind, fault.text) == (None, "failed", f"all ranks: {ERROR}")
    assert missing(metrics.faults) == set()
    (line,) = trouble_lines(metrics)
    assert str(line).endswith(f"s after launch: all ranks: {ERROR}; ended the run")
    known = Records(headers=[RunHeader(100.0, 100.0, {}, {}, {})], failed=[REFUSED])
    assert [(figure.recorded, figure.wanted) for figure in losses(metrics, known)] == [([], [])]

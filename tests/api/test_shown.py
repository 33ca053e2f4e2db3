"""What a run and its outcome say of themselves, in a terminal and in a notebook."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest
from torch import Tensor, nn

from ddp import TrainedState
from ddp.trainer.epochs import EpochMetrics
from ddp.trainer.summary import SHOWN, RunSummary
from tests.api.conftest import Make, right
from tests.runtime import toy


class Rows(HTMLParser):
    """The cells of all rows of a page, and whether every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.mark.usefixtures("in_process")
def test_a_run_and_its_state_tell_what_happened(make: Make) -> None:
    with make(eval_step=right, eval_dataset=toy.data(20), metric="accuracy", anchor=4).run() as run:
        first = run.next_metrics()
        assert first is not None
        state = run.join()
    assert repr(run).startswith("<RunHandle: nccl_cadence on 2 ranks (cpu): finished, 2 of 2 epochs, ")
    assert "\n" not in repr(run)
    last = run.summary().epochs[-1]
    assert f"accuracy {last.eval:.4g}" in str(run)
    page = Rows(run._repr_html_())
    assert not page.open
    assert page.rows[0][:3] == ["epoch", "loss", "accuracy"]
    assert [row[0] for row in page.rows[1:]] == ["0", "1"]
    assert page.rows[2][1] == f"{last.loss:.4g}"
    numbers = sum(tensor.numel() for tensor in state.params.values())
    assert repr(state) == f"<TrainedState: {numbers:,} parameters in {len(state.params)} tensors, 3 buffers>"
    assert str(state).splitlines()[1:] == str(run).splitlines()
    assert Rows(state._repr_html_()).rows == page.rows


@pytest.mark.usefixtures("in_process")
def test_a_run_says_how_it_stands_and_why_it_ended(make: Make) -> None:
    def broken(model: object, batch: object) -> None:
        raise RuntimeError("<b>a bug</b>")

    going = make(epochs=10**6).run()
    assert "running, 0 of 1000000 epochs" in repr(going) or "running" in repr(going)
    going.abort()
    assert ": aborted, " in repr(going)
    failed = make(train_step=broken, tolerate_loss=False).run()
    failed.wait()
    assert "RankFailed: rank" in repr(failed)
    assert "&lt;b&gt;a bug&lt;/b&gt;" in failed._repr_html_()
    with pytest.raises(Exception, match="a bug"):
        failed.join()


def test_long_runs_show_their_end_and_what_is_not_known_is_left_out() -> None:
    def epoch(number: int) -> EpochMetrics:
        scalars = {"gain": None} if number else {}
        return EpochMetrics(number, math.pi, None, None, 0.1, 100, 0.0, scalars, ({},), (0.0,), (1.0,), ("cpu",))

    about = ("solo", "metric", ("cpu",), 100, "running", 1.0)
    summary = RunSummary(*about, tuple(map(epoch, range(100))), ("rank 1 is lost",))
    page = Rows(summary.html())
    assert len(page.rows) == SHOWN + 1
    assert page.rows[0] == ["epoch", "loss", "lr", "gain"]
    assert page.rows[-1] == ["99", "3.142", "0.1", "-"]
    assert summary.headline == "solo on 1 rank (cpu): running, 100 of 100 epochs, 1.0 s of training"
    assert list(summary.lines())[-1] == "rank 1 is lost"
    assert RunSummary(*about, ()).headline == "solo on 1 rank (cpu): running, 0 of 100 epochs"


def test_a_state_alone_says_its_size() -> None:
    state = TrainedState({"w": toy.data()[0]}, {})
    assert str(state) == f"{toy.SAMPLES * 6:,} parameters in 1 tensor, 0 buffers"


def test_a_parameter_with_two_names_counts_once(make: Make) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.second(self.first(inputs))
            return output

    state = make(model_factory=Tied, world_size=1, epochs=1).run().join()
    assert str(state).startswith("48 parameters in 3 tensors, 0 buffers")
    assert state.params["first.weight"].equal(state.params["second.weight"])

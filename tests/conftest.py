"""Which schedules hypothesis draws: the same in every run, unless `make campaign` asks for new ones. What tests draw by
themselves is the same, too. One thread for torch in each process, as in ranks. Warm commands."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, settings

from tests.warm import Warm

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("new", phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)
settings.load_profile(os.environ.get("SCHEDULES", "same"))

# Nothing is kept in, or read from, what belongs to the user.
_CACHE = TemporaryDirectory(prefix="elche-bench-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# Before anything imports torch: several processes test at once, and threads beyond the cores spin for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts something in the background has it ignore interrupts, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# After the number of threads is set.
import numpy  # noqa: E402
import torch  # noqa: E402


def pytest_collectstart() -> None:
    """Seed what modules draw for their parameters."""
    _seed()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Seed what a test draws."""
    _seed()


def _seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.default_generator.manual_seed(0)


@pytest.fixture
def press() -> Iterator[Callable[[], None]]:
    """Ctrl-C, here. Nobody listens to the garbage collector meanwhile: an interrupt that comes in a listener is lost."""
    listening = gc.callbacks[:]
    gc.callbacks.clear()
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    gc.callbacks[:] = listening


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Where commands are started that need not import torch anew."""
    with Warm() as server:
        yield server

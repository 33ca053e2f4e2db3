"""Which schedules hypothesis draws: the same in every run, unless `make campaign` asks for new ones."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("new", phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)
settings.load_profile(os.environ.get("SCHEDULES", "same"))

"""The live dashboard: a page over run folders, including those being written. It only reads them.

`bench.results.live` folds the records of a run; `view` says what of them is shown, and is pure. `tree` finds folders,
`board` keeps what is shown with the order of its changes, `server` sends it, `page` makes the HTML. No torch.
"""

from __future__ import annotations

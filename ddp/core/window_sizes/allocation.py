"""Allocation: whole steps for ranks of unequal speed, such that a window is as short as its steps allow.

Owns the arithmetic of step counts. `costs` are seconds per step (or any multiple), by rank. Knows no controller, no plan
and no ledger."""

from __future__ import annotations

import heapq

STRETCH = 1.25
"""Factor by which a window may exceed the requested length, if its steps then fit the ranks' speeds better."""
FEW = 8
"""Up to this many windows per epoch are made equal in size; with more, a shorter last window costs little."""
TOLERANCE = 0.01
"""Fraction of the rate that may be lost for windows of equal size."""
NEAR = 16
"""Number of sizes tried on either side of the middle when the rest of an epoch is divided in two."""
TRIED = 20_000
"""About how many step ends are searched for the best window length. In a window with more steps rounding costs nothing, and
the anchor has no upper limit."""
_EPSILON = 1e-9


def rate(counts: tuple[int, ...], costs: tuple[float, ...]) -> float:
    """Return the steps per second of a window in which ranks wait for the last one."""
    longest = max([n * cost for n, cost in zip(counts, costs, strict=True)], default=0.0)
    return sum(counts) / longest if longest else 0.0


def allocate(costs: tuple[float, ...], shortest: float, most: int, lead: int | None = None) -> tuple[int, ...]:
    """Return the step counts with the highest rate for a window of `shortest` to `STRETCH * shortest` seconds. `most`:
    steps of an epoch, at least one per rank.

    Rounding to the requested length costs up to half a step of the slowest rank, while some slightly longer window fits
    nearly exactly. No window is longer than an epoch, and if an epoch has few windows they are made equal. With `lead`, no
    rank does more than `lead` steps more than the slowest."""
    if lead is not None:
        return _led(costs, shortest, most, lead)
    low, weights = sum(_fill(costs, shortest, shortest)), tuple([1 / cost for cost in costs])
    windows = max(1, most // max(low, 1))
    if low >= most:
        return _with_all(level(weights, (most,) * len(costs), -(-most // windows)))
    best = _fill(costs, shortest, _best_length(costs, shortest))
    if windows <= FEW:
        equal = level(weights, (most,) * len(costs), -(-most // windows))
        high = sum(_fill(costs, shortest, shortest * STRETCH))
        if sum(equal) <= high and rate(equal, costs) >= (1 - TOLERANCE) * rate(best, costs):
            return _with_all(equal)
    return best if sum(best) <= most else _with_all(level(weights, best, most))


def _with_all(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Give every rank at least one step, taken from the ranks with most."""
    some, without = list(counts), [r for r, n in enumerate(counts) if not n]
    most = [(-n, r) for r, n in enumerate(counts) if n] if without else []
    heapq.heapify(most)
    for rank in without:
        left, giver = most[0]
        heapq.heapreplace(most, (left + 1, giver))
        some[giver] -= 1
        some[rank] = 1
    return tuple(some)


def _led(costs: tuple[float, ...], shortest: float, most: int, lead: int) -> tuple[int, ...]:
    """Shorten the window until it fits into `most`: removing single steps would take some ranks further ahead than
    `lead`."""
    while True:
        counts = _fill(costs, shortest, shortest)
        most_of_one = min(counts) + lead
        counts = tuple(min(n, most_of_one) for n in counts)
        if sum(counts) <= most:
            return counts
        if min(counts) == 1:
            return _with_all(level(tuple(map(float, counts)), counts, most))
        shortest = min(shortest * most / sum(counts), (min(counts) - 1) * max(costs))


def _fill(costs: tuple[float, ...], shortest: float, length: float) -> tuple[int, ...]:
    """Return the steps of each rank that fit into `length` seconds, at least one."""
    slack = shortest * _EPSILON
    return tuple([max(1, int((length + slack) / cost)) for cost in costs])


def _best_length(costs: tuple[float, ...], shortest: float) -> float:
    """Return the window length, up to `STRETCH * shortest`, with the most steps per second. Only ends of steps are
    candidates."""
    steps = _fill(costs, shortest, shortest)
    stretch = min(STRETCH, 1 + TRIED / sum(steps))
    longest = max([n * cost for n, cost in zip(steps, costs, strict=True)])
    best, length, done = sum(steps) / longest, longest, sum(steps)
    ends: list[float] = []
    for n, cost in zip(steps, costs, strict=True):
        ends += [(n + 1 + i) * cost for i in range(int(stretch * shortest / cost) - n)]
    for end in sorted(ends):
        done += 1
        if done / max(end, longest) > best * (1 + _EPSILON):
            best, length = done / max(end, longest), end
    return length


def level(weights: tuple[float, ...], caps: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Divide `total` steps (or the sum of `caps`, if less) in proportion to `weights`, minimising the largest steps /
    weight."""
    total, whole = min(total, sum(caps)), sum([w for w, cap in zip(weights, caps, strict=True) if cap])
    steps = [min(cap, int(total * w / whole)) if cap else 0 for w, cap in zip(weights, caps, strict=True)]
    ends = [((n + 1) / weights[r], r) for r, n in enumerate(steps) if n < caps[r]]
    heapq.heapify(ends)
    for _ in range(total - sum(steps)):
        _, rank = heapq.heappop(ends)
        steps[rank] += 1
        if steps[rank] < caps[rank]:
            heapq.heappush(ends, ((steps[rank] + 1) / weights[rank], rank))
    return tuple(steps)


def top_up(have: tuple[float, ...], weights: tuple[float, ...], more: int) -> tuple[int, ...]:
    """Divide `more` steps among ranks that `have` some, so that the sums come as close to the proportions of `weights` as
    possible. A rank that has its part already, or has weight zero, gets none."""
    open_, steps, end = list(weights), [0] * len(have), 0.0
    while any(open_):
        end = (more + sum(n for n, w in zip(have, open_, strict=True) if w)) / sum(open_)
        over = [r for r, n in enumerate(have) if open_[r] and n > open_[r] * end]
        if not over:
            break
        for rank in over:
            open_[rank] = 0.0
    takers = [r for r, w in enumerate(open_) if w]
    for rank in takers:
        steps[rank] = int(open_[rank] * end - have[rank])
    ends = [((have[r] + steps[r] + 1) / open_[r], r) for r in takers]
    heapq.heapify(ends)
    for _ in range(more - sum(steps) if takers else 0):
        _, rank = ends[0]
        steps[rank] += 1
        heapq.heapreplace(ends, ((have[rank] + steps[rank] + 1) / open_[rank], rank))
    return tuple(steps)


def merge_lone(
    steps: tuple[int, ...], weights: tuple[float, ...], caps: tuple[int, ...], lead: int | None = None
) -> tuple[int, ...]:
    """Give every rank either 0 or at least 2 steps, where its cap is 2 or more and another rank can take its single step.

    A single step says little about a rank's speed, as it includes the start-up. With `lead`, a step is not moved if that
    would take a rank further ahead of the slowest than `lead`."""
    merged = list(steps)
    lone = [r for r in sorted(range(len(steps)), key=lambda r: (weights[r], r)) if steps[r] == 1 and caps[r] >= 2]
    if not lone:
        return steps
    most = [cap if lead is None else min(cap, lead) for cap in caps]
    peers = [((n + 1) / weights[r], r) for r, n in enumerate(steps) if 0 < n < most[r]]
    heapq.heapify(peers)
    for rank in lone:
        if merged[rank] != 1:
            continue
        merged[rank] = 0  # so that it is not its own taker, and no rank that gave its step away is one
        while peers and not merged[peers[0][1]]:
            heapq.heappop(peers)
        if not peers:
            merged[rank] = 1
            continue
        taker = peers[0][1]
        merged[taker] += 1
        if merged[taker] < most[taker]:
            heapq.heapreplace(peers, ((merged[taker] + 1) / weights[taker], taker))
        else:
            heapq.heappop(peers)
    return tuple(merged)


def fit(counts: tuple[int, ...], weights: tuple[float, ...], left: int, lead: int | None = None) -> tuple[int, ...]:
    """Return the step counts of the next window, given `left` steps in the epoch: `counts`, or less near its end.

    The last two windows share the remaining steps, as a last window of a step or two would cost a whole average. The cut
    minimises their total time. Counts only shrink, so bounds that they keep remain kept."""
    whole = sum(counts)
    if left >= 2 * whole:
        return counts
    if left <= whole:
        return merge_lone(level(weights, counts, left), weights, counts, lead)
    middle = -(-left // 2)
    near = min(NEAR, whole // 4, whole - middle)
    sizes = sorted(range(middle - near, middle + near + 1), key=lambda size: abs(size - middle))
    costs = tuple(1 / w if n else 0.0 for w, n in zip(weights, counts, strict=True))

    def seconds(size: int) -> float:
        cuts = (level(weights, counts, size), level(weights, counts, left - size))
        return sum(max(n * cost for n, cost in zip(cut, costs, strict=True)) for cut in cuts)

    size = min(sizes, key=lambda size: round(seconds(size) / seconds(middle), 9))
    return merge_lone(level(weights, counts, size), weights, counts, lead)

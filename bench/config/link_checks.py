"""Checks of emulated links: entries without effect are refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddp.core.network.links import LinkRule, Links, parse


def links_for(words: str | Sequence[str], size: int) -> Links | None:
    """Return the links of `size` ranks; None: `words` is empty. Raise ValueError for words that are no links, for an
    entry that connects no two ranks, and for an algorithm without a link."""
    links = parse(words, size if size > 1 else None)  # one rank has none: of them only the form is checked
    if links is None and words:
        text = words if isinstance(words, str) else ",".join(map(str, words))
        raise ValueError(f"{text} is an algorithm without a link; add one, such as [wan_1g_30ms,{text}]")
    for rule in links.rules if links is not None else ():
        if not connects_any(rule):
            raise ValueError(f"link {str(rule)!r} connects no two ranks; write 0+1:LINK for the link between two")
    return links


def connects_any(rule: LinkRule) -> bool:
    """Return whether any two ranks use the rule. A rank in several groups belongs to the first."""
    seen, sizes = set[int](), list[int]()
    for group in rule.groups:
        ranks = {rank for low, high in group for rank in range(low, high + 1)} - seen
        sizes.append(len(ranks))
        seen |= ranks
    return not sizes or (sizes[0] > 1 if len(sizes) == 1 else sum(map(bool, sizes)) > 1)

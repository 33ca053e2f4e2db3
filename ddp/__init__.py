"""The training engine: data-parallel training on devices of equal or unequal speed.

`ddp.core` decides (pure), `ddp.runtime` obeys (processes, clocks, collectives), `ddp.sim` plays the same core in
virtual time, `ddp.graph` builds models, `ddp.data` feeds them. Importing `ddp` itself imports none of them.
"""

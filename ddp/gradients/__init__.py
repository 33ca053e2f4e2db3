"""Own the one way of gradients: buckets filled by hooks, and where each bucket goes. Knows nothing of training loops.

`buckets` decides what travels together and when, `storage` is the memory of buckets, `step_gradients` what a step exchanges.
Then a bucket goes to an all-reduce (`average`), to the owners of shards (`owned`) or to a sum in one process (`exchange`).
"""

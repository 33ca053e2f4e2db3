"""Own the reduction of gradients: buckets filled by hooks, and the destination of each bucket. Knows nothing of training
loops.

`buckets` decides which gradients share a bucket and when it is sent, `storage` owns the memory of buckets, `step_gradients`
the tensors that a step exchanges. A bucket goes to an all-reduce (`average`), to the owners of shards (`owned`), or to a
sum in one process (`exchange`).
"""

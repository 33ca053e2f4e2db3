"""Own spans of samples and the ledger, which gives out each sample of an epoch exactly once. Must not know ranks'
speeds or rounds."""

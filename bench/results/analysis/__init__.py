"""Parts of `bench.results.analyze`, each pure: records sorted (`stream`), where time went (`breakdown`), what was learnt
(`training`), what bringing replicas together cost (`syncing`)."""

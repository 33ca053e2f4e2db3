"""The parts of `bench.results.analyze`, each pure: records by kind (`stream`), where time went (`breakdown`), what was
learned (`training`), the cost of synchronization (`syncing`)."""

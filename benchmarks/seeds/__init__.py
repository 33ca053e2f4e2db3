"""Published tables and ours beside them: an experiment each, and the page of them.

One file a table: what is published, what is read from our runs, and both as Markdown. Trains nothing itself."""

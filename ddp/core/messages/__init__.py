"""Own the events and commands between coordinator and ranks, and the lines of a record. Must not know who reacts, or
how."""

"""Own the links between ranks and the time of a transfer over them. Must not know what is transferred."""

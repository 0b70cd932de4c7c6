"""One conversation: nursery, epochs, mailbox, responses, history, playback ledger, journal. No sockets, JSON or torch."""

"""One conversation: nursery, epochs, mailbox, responses, history, ledger, journal. No sockets, JSON or torch."""

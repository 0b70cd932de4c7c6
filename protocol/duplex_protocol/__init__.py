"""The wire of trio-duplex, sans-IO: bytes in, values out.

No trio, no torch, no clock, no randomness. A session speaks :mod:`~duplex_protocol.commands` and
:mod:`~duplex_protocol.events`; a *dialect* (:mod:`~duplex_protocol.realtime`, :mod:`~duplex_protocol.native`) is a pair
of pure functions between those and the wire. What is allowed, what a name means and what follows what are tables.
"""

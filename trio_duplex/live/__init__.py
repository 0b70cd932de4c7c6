"""A person at a sound device, talking to a session: ``trio-duplex talk --mic``.

================  ========================================================================================
module            holds
================  ========================================================================================
``sound``         the sound library: finding it, choosing devices, opening streams; errors as one line
``device``        what both directions share: a stream, its life and death, waking Trio from its thread
``microphone``    blocks from the device's thread into the session; bounded, what is lost is counted
``loudspeaker``   answers from a buffer into the device; acknowledges what the device really played
``live_talk``     both of them beside one client, until Ctrl-C
================  ========================================================================================

The client side only: no server package is needed. The sound library (extra ``mic``) is imported when it is wanted.
"""

"""The demo: a whole full-duplex conversation over a real socket, recorded, checked and drawn.

=================  ====================================================================================
module             holds
=================  ====================================================================================
``recordings``     speech from files, and where in it somebody speaks
``event_log``      what went over the wire, in both directions, with times; a transport that fills it
``microphone``     a live microphone played from recordings: one chunk per 32 ms, silence in between
``speaker``        a virtual loudspeaker: plays what arrived as time passes and acknowledges it
``conversation``   client, microphone, speaker and log of one session, joined
``scenario``       the demo's story: ask, listen, interrupt, listen to the end
``facts``          what a log says about the turns: plain values for checks, report and picture
``promises``       what must hold of a finished conversation, as a table of checks
``timeline``       the picture
``report``         what is printed, and the files
``demo``           all of it in one call (``trio-duplex demo``)
``local_server``   a server on a free port for as long as a block runs
``talking``        one WAV file against any server (``trio-duplex talk``)
``lines``          a server event as a line of text
=================  ====================================================================================
"""

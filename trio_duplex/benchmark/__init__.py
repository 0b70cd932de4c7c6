"""``trio-duplex bench``: open-loop load over real sockets, measured where the caller stands.

=================  ================================================================================
module             holds
=================  ================================================================================
``plan``           what one caller does and when, whatever the server does; the messages to send
``caller``         one session over a real socket that follows a plan
``measures``       what came back, and when → latencies (pure)
``load``           many callers: ramp, window, refusals
``server_process`` the server in a process of its own; its CPU, memory and statistics
``numbers``        percentiles (pure)
``facts``          what it ran on
``report``         results → table, JSON; ``picture`` → a picture
``command``        all of it, for the command line
=================  ================================================================================
"""

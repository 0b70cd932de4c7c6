"""The embedded demo model: it listens and talks with small networks on the CPU and a rule-based brain.

===============  ==================================================================================
module           holds
===============  ==================================================================================
``plugin``       capabilities, config checks, life cycle: :class:`DemoPlugin`
``options``      what a deployment may choose: :class:`DemoOptions`
``session``      one session: results of hearing, answers
``hearing``      samples and probabilities → utterances and turns (pure)
``preparation``  recognition and the beginning of an answer, ahead of the end of a turn
``answering``    a question → an answer that is said while it is thought
``speaking``     an answer → clauses → sound at real-time pace; ``unit_cutter`` → units with their words
``brain``        what to say, by rules (pure); ``arithmetic`` and ``small_talk`` belong to it
``tool_calls``   which tool the words ask for, with which arguments (pure)
``thinking``     an answer in the making: of the rules at once, or of a chat endpoint sentence by sentence
``memory``       which part of the history is the question, which came before
``engine``       what a session needs of the networks, as a protocol
``threads``      the networks behind that protocol: a model thread and a job thread
``networks``     which networks those are
===============  ==================================================================================

Importing this package loads no network library; running the plugin does.
"""

from trio_duplex.models.demo.options import DemoOptions
from trio_duplex.models.demo.plugin import DemoPlugin

__all__ = ["DemoOptions", "DemoPlugin"]

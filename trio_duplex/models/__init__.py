"""Model plugins: the contract between a session and a model, and one module per model.

A plugin holds capabilities, config checks, prompt feeding and decisions. It holds no network (those live in
``duplex_gpu``) and no wire (that is ``duplex_protocol``).
"""

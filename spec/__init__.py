"""A model of the protocol, and a checker that visits every state of it.

    python -m spec                  every scenario, every rule kept: must hold in every reachable state
    python -m spec --drop RULE      without a rule: the shortest sequence of events in which something goes wrong
    python -m spec --list           the rules

`checker` is generic; `rules` names the guards; `scenarios` the worlds that are searched; the other modules are models.
docs/model.md says what is covered, what is not, and how far the model is from the code.
"""

"""Run operators on the user's own device and time them: ``sartor measure``. docs/howto/measure-my-machine.md.

``cases`` says what is run, ``suites`` which cases, ``device`` what a device must be able to do, ``timing`` how long to
look, ``run`` keeps budget and records. Only the ``torch_*`` modules know PyTorch, and import it inside functions.
"""

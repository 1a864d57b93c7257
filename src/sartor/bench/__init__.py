"""Run operators on the user's own device and time them: ``sartor measure``. docs/howto/measure-my-machine.md.

``cases`` describes what is timed, ``suites`` selects cases, ``device`` is the device protocol, ``timing`` decides how
long to sample, ``run`` keeps budget and records. Only ``torch_*`` modules use PyTorch, imported inside functions.
"""

"""The search for an accelerator and a plan together, with a proof.

The room in the order of its work:

*Question*: `options` (each option of ``design``, declared once) and `ask` (from words to a `question`); `space` (the
axes of a chip, and a space as arrays of chips) and `candidates` (those within the budgets, what one costs, the result).

*Bounds*: `parts` (a model as a first part, kinds of layers and a last part), `bounds` (what no plan of a split exceeds,
for thousands of chips at once: by work, then by schedules and placement), `equal_chunks` (interleaved pipelines, and
ZeRO 2 and 3 on one stage).

*Evaluation*: `point` (one chip with one memory, exactly: schedules of its layers, then the best placement) and `tasks`
(bounds and points as pure functions of what can be pickled, so that any executor may run them).

*Proof*: `best_first` (how points wait, run and come back, until nothing can be better), `search` (over chips, bounds in
chunks, one question to its result); `infeasible` (why nothing fits).

*Front*: `front` (the best under each budget, and every point of a space covered).

*Shapes*: `shape_bounds` (all shapes of a model's size, and their bounds), `shapes_proved` (shape, chip and
plan in one proof), `shape_family` (several models with a shape each), `shapes` (a few shapes, each on the whole space
and on a fleet).

*Sensitivity and comparison*: `sensitivity` (ends of axes, ranges within 1%, errors of 30%), `baselines` (known chips
and experts' published plans), `against` (catalogue GPUs, and what each part of the best chip is worth); `detail` (one
model on the best chip, step and layer).
"""

"""The search for an accelerator and a plan together, with a proof.

The room in the order of its work:

*Question*: `options` (each option of ``design``, declared once) and `ask` (from words to a `question`); `space` (the
axes of a chip, and a space as arrays of chips) and `candidates` (those within the budgets, and what one costs).

*Bounds*: `parts` (a model as a first part, kinds of layers and a last part), `bounds` (what no plan of a split exceeds,
for thousands of chips at once: by work, then by schedules and placement), `equal_chunks` (interleaved pipelines, and
ZeRO 2 and 3 on one stage), `energy`.

*Evaluation*: `point` (one chip with one memory, exactly: schedules of its layers, then the best placement) and `tasks`
(bounds and points as pure functions of what can be pickled, so that any executor may run them).

*Proof*: `search` (best bound first until nothing can be better) over the state in `incumbent` (the best so far and what
waits), `bounding` (bounds in chunks) and `state` (points in flight); `result`; `infeasible` (why nothing fits).

*Front*: `front` (the best under each budget) and `pareto` (every point of a space covered).

*Shapes*: `shape_axes` (all shapes of a model's size), `shape_bounds`, `shape_queue` and `shapes_proved` (shape, chip
and plan in one proof), `shape_family` (several models with a shape each), `shapes` (a few shapes, each on the whole
space and on a fleet).

*Sensitivity and comparison*: `sensitivity` (ends of axes, ranges within 1%, errors of 30%), `baselines` (known chips)
with `experts` (their published plans) and `why` (what each part of the best chip is worth), `against` (catalogue GPUs);
`detail` (one model on the best chip, step and layer).
"""

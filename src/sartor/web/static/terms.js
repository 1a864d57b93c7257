// Glossary entries with formulas, shown on hover and focus of elements with data-term.

export const TERMS = {
  hidden_size: [
    "Hidden size h",
    "Width of the residual stream: every layer reads and writes vectors of h numbers.",
    "QKV: m = b·s, n = (a + 2·g)·d, k = h",
  ],
  num_heads: [
    "Heads a",
    "Query heads of attention. If a · d = h, more heads are narrower.",
    "a · d = h in most models",
  ],
  num_kv_heads: [
    "Key/value heads g",
    "Heads of keys and values; several query heads share one. Fewer heads make a smaller KV cache.",
    "KV cache = 2 · L · g · d · s · bytes",
  ],
  head_dim: [
    "Head dimension d",
    "Width of one head. Attention kernels are compiled for 64, 96, 128, 192, 256.",
    "scores: s × s per head, k = d",
  ],
  ffn_hidden_size: [
    "Feed-forward width d_ff",
    "Inner width of the feed-forward part; gated ones have two up projections.",
    "FLOPs = 2 · b·s · h · d_ff per GEMM",
  ],
  num_layers: ["Layers L", "Number of layers. Time grows in proportion.", "N ≈ L · (4·h² + 3·h·d_ff)"],
  vocab_size: [
    "Vocabulary v",
    "Rows of the embedding table and columns of the logits GEMM. Multiples of 64 or 128 fill its tiles.",
    "logits: m = b·s, n = v, k = h",
  ],
  num_experts: ["Experts E", "Feed-forward parts to choose from.", "parameters ∝ E"],
  experts_per_token: ["Experts per token", "Experts that process each token.", "FLOPs ∝ experts per token"],
  expert_ffn_hidden_size: ["Expert width", "Inner width of one expert.", "grouped GEMM: m = tokens per expert"],
  num_shared_experts: [
    "Shared experts",
    "Experts that every token passes, beside those it is routed to.",
    "FLOPs ∝ experts per token + shared experts",
  ],
  shared_ffn_hidden_size: [
    "Shared width",
    "Inner width of the expert that every token passes.",
    "FLOPs = 2 · b·s · h · width per GEMM",
  ],
  q_lora_rank: ["Query rank", "Width of the latent that queries are projected from.", "q_up: k = rank"],
  num_full_layers: [
    "Full-attention layers",
    "Layers whose queries see the whole context; the others see a window.",
    "KV cache grows with s in these alone",
  ],
  kv_lora_rank: [
    "Key/value rank",
    "Width of the latent that keys and values share; the KV cache holds it.",
    "KV cache = L · (rank + rope) · s · bytes",
  ],
  seq_len: ["Sequence length s", "Tokens in one sequence.", "attention FLOPs ∝ s²"],
  microbatch_size: ["Microbatch b", "Sequences that pass through the model at once.", "m = b · s"],
  context_len: [
    "Context",
    "Tokens already in the KV cache when the next one is decoded.",
    "bytes read = 2 · L · g · d · context · bytes",
  ],
  tp: [
    "Tensor parallel t",
    "Devices that share every layer: matrices are split, partial sums are reduced.",
    "n → n / t",
  ],
  phase: [
    "Phase",
    "Training (forward and backward), prefill (forward over a prompt), or decode (one token at a time).",
    "training ≈ 3 × the forward pass: m = b·s; decode: m = b",
  ],
  dtype: [
    "Data type",
    "Number format of the matrix multiplications. Peaks are dense, without structured sparsity.",
    "bytes = elements · width; FLOPs/s ≤ dense peak of the type",
  ],
  attention: [
    "Attention",
    "flash: one fused kernel, scores never leave the chip. unfused: three kernels.",
    "FLOPs = 4 · b · s² · a · d forward (half under a causal mask)",
  ],
  gpu: [
    "Device",
    "A GPU or accelerator of the catalogue, which has a source for each number.",
    "roof = min(peak, intensity · bandwidth)",
  ],
  step: [
    "Predicted time",
    "Sum over operators of count × time. 80% of measured times should fall inside the interval.",
    "T = Σ count · time",
  ],
  params: [
    "Parameters N",
    "All weights; tied tables count once.",
    "N ≈ L · (2·h·d·(a + g) + k·h·d_ff) + v·h, k = 3 gated, else 2",
  ],
  mfu: [
    "MFU",
    "Model FLOP utilization: FLOP/s in matrix multiplications over the device's dense peak.",
    "FLOPs / (T · peak)",
  ],
  tokens_per_s: ["Throughput", "Tokens over the predicted time and the devices.", "b · s / (T · devices)"],
  equal_work: [
    "At equal work",
    "A larger size computes more. Values are compared by time over work (GEMM FLOPs or parameters, whichever " +
      "favours less), so that a smaller model is not faster just for being smaller.",
    "1 − (T′/T) / min(F′/F, N′/N)",
  ],
  roofline: [
    "Roofline",
    "Bandwidth times intensity, up to the peak. Points are GEMMs; the nearer to the roof, the better.",
    "min(peak, intensity · bandwidth)",
  ],
  finding: [
    "Finding",
    "A rule that this shape violates on this device, and the time the fix saves at equal work.",
    "gain = 1 − (T′/T) / work′",
  ],
  beats: [
    "Probability",
    "Probability that the row is the faster of the two. Errors that both shapes share cancel.",
    "Φ(ln(T₂/T₁) / σ)",
  ],
  interval: ["80% interval", "Four of five measured times should fall inside.", "T · e^(± 1.28 σ)"],
  cluster: ["Cluster", "Devices, nodes, and the links between them.", "bandwidth of a group = its slowest link"],
  num_devices: [
    "Devices",
    "Devices of the job; several numbers, separated by commas, are compared.",
    "dp·tp·pp·cp = devices",
  ],
  global_batch_size: [
    "Global batch B",
    "Sequences in one optimizer step over all devices.",
    "B = b · microbatches · dp",
  ],
  fix: [
    "Fixed",
    "Axes of the plan, and switches of trainer and job, with fixed values: tp=8, recompute=none, tp_overlap=on.",
    "name = value, …",
  ],
  framework: [
    "Trainer",
    "Its options, overlap and sharding decide which plans are valid and how long they take.",
    "step = compute + exposed communication",
  ],
  optimizer: [
    "Optimizer",
    "Optimizer state in memory: Adam keeps 8 bytes per parameter in addition to the master weights.",
    "Adam: 4 (master) + 4 + 4 bytes per parameter",
  ],
  pp: ["Pipeline parallel p", "Consecutive stages, each on its own devices.", "bubble ≈ (p − 1) / (microbatches · v)"],
  dp: [
    "Data parallel d",
    "Replicas that process different sequences and sum their gradients.",
    "gradients exchanged = 2·(d − 1)/d · bytes",
  ],
  cp: ["Context parallel c", "Devices that split a sequence.", "tokens per device = s / c"],
  ep: ["Expert parallel e", "Devices that split the experts.", "experts per device = E / e"],
  zero: [
    "ZeRO stage",
    "1 shards optimizer state over the replicas, 2 also gradients, 3 also parameters.",
    "states per device = bytes / (d·c)",
  ],
  recompute: [
    "Recompute",
    "Activations that are discarded and recomputed in the backward pass to save memory.",
    "full: one forward pass more, ≈ 4/3 of the FLOPs",
  ],
  peak_bytes: [
    "Peak memory",
    "Memory of the fullest device: parameters, gradients, optimizer state, activations, workspace, allocator reserve.",
    "M = parameters + gradients + states + activations + workspace",
  ],
  pareto: [
    "Pareto front",
    "Points that no other point beats in all respects.",
    "no x′ with f(x′) ≤ f(x) in all and < in one",
  ],
  gap: ["Gap", "Proved limit on how much better any other point can be.", "(bound − best) / best"],
  space: ["Space", "The accelerators to choose from: sartor catalog spaces.", "candidates = product of its axes"],
  power: ["Power", "Power of one device with all parts at their peak rates.", "P = idle + Σ energy per access · rate"],
  cores: [
    "Cores",
    "Tensor cores multiply matrices (rows contract, columns produce); vector cores do the rest.",
    "peak = 2 · cores · rows · columns · clock",
  ],
  buffer: ["Global buffer", "Memory on the die that all cores share.", "traffic to memory falls with √size"],
  hbm: ["Memory", "Stacked memory next to the die.", "time ≥ bytes / bandwidth"],
  clock: ["Clock", "Cycles per second of the cores.", "cycles = seconds · clock"],
  node: ["Node", "Process node, which sets area and energy of the parts.", "area ∝ node²"],
  area: [
    "Area",
    "Predicted silicon area of the chip's parts, in mm².",
    "A = Σ parts: arrays + lanes + buffers + interfaces",
  ],
};

const tip = document.getElementById("tip");
let shownFor = null;

function show(target) {
  const entry = TERMS[target.dataset.term];
  const text = target.dataset.tip;
  if (!entry && !text) return;
  shownFor = target;
  tip.replaceChildren();
  if (entry) {
    const [title, about, formula] = entry;
    for (const [tag, words] of [
      ["strong", title],
      ["span", about],
      ["code", formula],
    ]) {
      if (!words) continue;
      const line = document.createElement(tag);
      line.textContent = words;
      tip.append(line);
    }
  }
  if (text) {
    const line = document.createElement("span");
    line.textContent = text;
    tip.append(line);
  }
  tip.hidden = false;
  target.setAttribute("aria-describedby", "tip");
  place(target);
}

function place(target) {
  const at = target.getBoundingClientRect(),
    box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left), document.documentElement.clientWidth - box.width - 8);
  const above = at.top - box.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : at.bottom + 8}px`;
}

function hide() {
  if (!shownFor) return;
  shownFor.removeAttribute("aria-describedby");
  shownFor = null;
  tip.hidden = true;
}

export function explainOnHover() {
  const find = (event) => event.target.closest?.("[data-term],[data-tip]");
  document.addEventListener("pointerover", (event) => {
    const at = find(event);
    if (at !== shownFor) {
      hide();
      if (at) show(at);
    }
  });
  document.addEventListener("focusin", (event) => {
    const at = find(event);
    hide();
    if (at?.matches(":focus-visible")) show(at);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  // Focus by keyboard scrolls its word into view: what explains it goes along.
  addEventListener(
    "scroll",
    () => {
      if (shownFor && shownFor === document.activeElement) place(shownFor);
      else hide();
    },
    { passive: true, capture: true },
  );
}

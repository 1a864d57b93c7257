// What words mean, with the formula: shown on hover and focus of anything that carries data-term.

export const TERMS = {
  hidden_size: ["Hidden size h", "Width of the residual stream: every layer reads and writes vectors of h numbers.", "QKV: m = b·s, n = (a + 2·g)·d, k = h"],
  num_heads: ["Heads a", "Query heads of attention. Where a · d = h, more heads are narrower ones.", "a · d = h in most models"],
  num_kv_heads: ["Key/value heads g", "Heads that keys and values have; several query heads share one. Fewer make the KV cache smaller.", "KV cache = 2 · L · g · d · s · bytes"],
  head_dim: ["Head dimension d", "Width of one head. Attention kernels are compiled for 64, 96, 128, 192, 256.", "scores: s × s per head, k = d"],
  ffn_hidden_size: ["Feed-forward width d_ff", "Inner width of the feed-forward part; gated parts have two projections up.", "FLOPs = 2 · b·s · h · d_ff per product"],
  num_layers: ["Layers L", "How many layers are stacked. Time grows in proportion.", "N ≈ L · (4·h² + 3·h·d_ff)"],
  vocab_size: ["Vocabulary v", "Tokens known. Rows of the table and columns of the output product: multiples of 64 or 128 fill its tiles.", "logits: m = b·s, n = v, k = h"],
  num_experts: ["Experts E", "Feed-forward parts to choose from.", "parameters ∝ E"],
  experts_per_token: ["Experts per token", "How many experts each token visits.", "FLOPs ∝ experts per token"],
  expert_ffn_hidden_size: ["Expert width", "Inner width of one expert.", "grouped GEMM: m = tokens per expert"],
  seq_len: ["Sequence length s", "Tokens in one sequence.", "attention FLOPs ∝ s²"],
  microbatch_size: ["Microbatch b", "Sequences that pass through the model at once.", "m = b · s"],
  context_len: ["Context", "Tokens already in the KV cache when the next is decoded.", "bytes read = 2 · L · g · d · context · bytes"],
  tp: ["Tensor parallel t", "Devices that share every layer: matrices are split, sums are exchanged.", "n → n / t"],
  phase: ["Phase", "Training (forward and backward), prefill (forward over a prompt), or decode (one token at a time).", "training ≈ 3 × the forward pass: m = b·s; decode: m = b"],
  dtype: ["Data type", "Number format of the products. Peaks are dense: no structured sparsity is counted.", "bytes = elements · width; FLOPs/s ≤ dense peak of the type"],
  attention: ["Attention", "flash: one fused kernel, scores never leave the chip. unfused: three kernels.", "FLOPs = 4 · b · s² · a · d forward (half under a causal mask)"],
  gpu: ["Device", "A GPU or accelerator of the catalogue; each figure there has its source.", "roof = min(peak, intensity · bandwidth)"],
  step: ["Predicted time", "Sum over operators of count × time. The interval holds 80% of measured times for kernels like these.", "T = Σ count · time"],
  params: ["Parameters N", "All weights, tied tables counted once.", "N ≈ L · (2·h·d·(a + g) + k·h·d_ff) + v·h, k = 3 gated, else 2"],
  mfu: ["MFU", "Model FLOPs utilization: product FLOPs per second over the device's dense peak.", "FLOPs / (T · peak)"],
  tokens_per_s: ["Throughput", "Tokens of the microbatch over the predicted time.", "b · s / T"],
  equal_work: ["At equal work", "A larger size computes more. Values are compared by time over work, so that a smaller model is not called faster for being smaller: work is the product FLOPs or the parameters, whichever changes less in its favour.", "1 − (T′/T) / min(F′/F, N′/N)"],
  wave: ["Wave efficiency", "Tiles of a product run in waves of as many as there are cores; the last wave may be nearly empty.", "tiles / (waves · SMs)"],
  tile: ["Tile efficiency", "Share of the computed tiles that is the product itself; the rest is padding at the edges.", "m·n / (⌈m/tm⌉·tm · ⌈n/tn⌉·tn)"],
  bound: ["Bound by", "The longest of computing, moving bytes, the network, and fixed overheads.", "argmax(compute, memory, network, overhead)"],
  roofline: ["Roofline", "What a device can at most do: bandwidth times intensity, up to its peak. Points are products; the nearer the roof, the better.", "min(peak, intensity · bandwidth)"],
  intensity: ["Arithmetic intensity", "Product FLOPs for every byte moved from or to memory.", "FLOPs / bytes"],
  finding: ["Finding", "A rule that this shape breaks on this device, with what the fix would save at equal work.", "gain = 1 − (T′/T) / work′"],
  beats: ["Probability", "That the row is the faster of the two. Errors are shared: what a kind of operator is off by moves both.", "Φ(ln(T₂/T₁) / σ)"],
  interval: ["80% interval", "Four of five measured times are expected inside.", "T · e^(± 1.28 σ)"],
  cluster: ["Cluster", "Devices, nodes, and the links between them.", "bandwidth of a group = its slowest link"],
  num_devices: ["Devices", "How many the job runs on; several with commas give the front over them.", "dp·tp·pp·cp = devices"],
  global_batch_size: ["Global batch B", "Sequences in one optimizer step over all devices.", "B = b · microbatches · dp"],
  fix: ["Held", "Axes held to one value: tp=8, pp=4, recompute=none.", "name = value, …"],
  framework: ["Trainer", "What it can be told, overlaps and shards decides which plans are legal and how long they take.", "step = what it exposes; it hides the rest behind compute"],
  optimizer: ["Optimizer", "Whose states are held: Adam keeps 8 bytes per parameter beside the master weights.", "Adam: 4 (master) + 4 + 4 bytes per parameter"],
  pp: ["Pipeline parallel p", "Stages one after the other, each on its own devices.", "bubble ≈ (p − 1) / (microbatches · v)"],
  dp: ["Data parallel d", "Copies of the whole that work on different sequences and add up gradients.", "gradients exchanged = 2·(d − 1)/d · bytes"],
  cp: ["Context parallel c", "Devices that share a sequence.", "tokens per device = s / c"],
  ep: ["Expert parallel e", "Devices that experts are spread over.", "experts per device = E / e"],
  zero: ["ZeRO stage", "1 shards optimizer states over the copies, 2 gradients too, 3 parameters too.", "states per device = bytes / (d·c)"],
  recompute: ["Recompute", "Activations thrown away and computed again in the backward pass, to save memory.", "full: one forward pass more, ≈ 4/3 of the FLOPs"],
  peak_bytes: ["Peak memory", "Of the fullest device: parameters, gradients, optimizer, activations, work space, what the allocator keeps.", "M = parameters + gradients + states + stash + work space"],
  bubble: ["Pipeline bubble", "Time stages wait while the pipeline fills and drains.", "(p − 1) / (m·v + p − 1)"],
  pareto: ["Pareto front", "Nothing else is better in one respect and as good in the other.", "no x′ with f(x′) ≤ f(x) in all and < in one"],
  gap: ["Gap", "How much better anything not yet looked at could be, proved.", "(bound − best) / best"],
  power: ["Power", "Of one device with everything at its peak rate.", "P = idle + Σ energy per access · rate"],
  cores: ["Cores", "Tensor cores multiply matrices (rows contract, columns produce); vector cores do the rest.", "peak = 2 · cores · rows · columns · clock"],
  buffer: ["Global buffer", "Memory on the die that all cores share.", "traffic to memory falls with √size"],
  hbm: ["Memory", "Stacked memory beside the die.", "time ≥ bytes / bandwidth"],
  clock: ["Clock", "Cycles per second of the cores.", "cycles = seconds · clock"],
  node: ["Node", "Process node: sets area and energy of the parts.", "area ∝ node²"],
  area: ["Area", "Predicted silicon area of the chip's parts, in mm².", "A = Σ parts: arrays + lanes + buffers + interfaces"],
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
    for (const [tag, words] of [["strong", title], ["span", about], ["code", formula]]) {
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
  const at = target.getBoundingClientRect(), box = tip.getBoundingClientRect();
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
  document.addEventListener("pointerover", (event) => { const at = find(event); if (at !== shownFor) { hide(); if (at) show(at); } });
  document.addEventListener("focusin", (event) => { const at = find(event); hide(); if (at && at.matches(":focus-visible")) show(at); });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // Focus by keyboard scrolls its word into view: what explains it goes along.
  addEventListener("scroll", () => { if (shownFor && shownFor === document.activeElement) place(shownFor); else hide(); }, { passive: true, capture: true });
}

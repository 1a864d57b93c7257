// Numbers as people read them; the same steps as sartor.units.

function scaled(value, steps, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  for (const [scale, unit] of steps) {
    if (Math.abs(value) >= scale) {
      const shown = value / scale;
      const text = shown >= 1000 ? Math.round(shown).toLocaleString("en") : Number(shown.toPrecision(digits));
      return `${text} ${unit}`.trim();
    }
  }
  return value === 0 ? "0" : String(Number(value.toPrecision(digits)));
}

const SECONDS = [
  [86400, "days"],
  [3600, "h"],
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
  [1e-9, "ns"],
];
const COUNTS = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
];
const BYTES = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
  [1, "B"],
];

export const seconds = (value, digits = 3) => scaled(value, SECONDS, digits);
export const count = (value, digits = 3) => scaled(value, COUNTS, digits).replace(" ", "");
export const bytes = (value) => scaled(value, BYTES);
export const whole = (value) => (value == null ? "—" : Math.round(value).toLocaleString("en"));

export const counted = (n, noun) => `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;

export function share(value, digits = 1) {
  return value === null || value === undefined || !Number.isFinite(value) ? "—" : `${(100 * value).toFixed(digits)}%`;
}

/** A change as a signed share: "−3.1%", "+0.0%" as "0%". */
export function change(value, digits = 1) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  const text = (100 * Math.abs(value)).toFixed(digits);
  return Number(text) === 0 ? "0%" : `${value < 0 ? "−" : "+"}${text}%`;
}

/** Probability, never said more surely than it is known. */
export function chance(value) {
  if (value === null || value === undefined) return "";
  return value > 0.99 ? ">99%" : value < 0.01 ? "<1%" : `${Math.round(100 * value)}%`;
}

/** "tp=8, pp=2" as an object, and back. */
export const axesOf = (text) =>
  Object.fromEntries(
    String(text ?? "")
      .split(",")
      .filter((x) => x.trim())
      .map((x) => {
        const [k, ...v] = x.split("=");
        return [k.trim(), v.join("=").trim()];
      }),
  );
export const axesWords = (fix) =>
  Object.entries(fix ?? {})
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");

export const interval = (low, high) => `${seconds(low)} to ${seconds(high)}`;

/** A gain, and what it is everywhere on the page: how much more of the same work is done in a second. Computing or
 * holding less earns nothing; of the sizes of a shape, the one that grew least says what work it does. */
export const times = (gain) => `${gain.toFixed(2)}×`;

export function gainOf(before, after) {
  const grown = Math.min(
    after.flops / before.flops,
    after.num_params / before.num_params,
    (after.num_active_params ?? after.num_params) / (before.num_active_params ?? before.num_params),
  );
  const work = grown > 1 && grown < 1.01 ? 1 : grown; // as the search for shapes of the same size counts it
  return (before.time_s / after.time_s) * work;
}

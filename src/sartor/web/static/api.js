// Questions to the server. What is asked at every turn of a knob is asked one at a time, the latest last.

export class Refused extends Error {
  constructor(error, status) {
    super(error?.message ?? "the server did not answer");
    this.field = error?.field ?? "";
    this.status = status;
  }
}

const AGAIN_MS = 1000;
/** @type {(what: string) => void} */
let told = () => {};
const heardWarnings = new Map(),
  newest = new Map();
let asked = 0;
/** `listener(sentences)`: what the answers on screen warn of, as the command line prints it. */
let warn = (_sentences) => {};
export const onWarnings = (listener) => {
  warn = listener;
};

let server = null,
  lost = false;
/** `listener("lost")` where the server does not answer, "back" where it does again,
 * "restarted" where it is another one. */
export const onServer = (listener) => {
  told = listener;
};

/** Of an answer: whether the server is the one that answered before. */
function heard(response) {
  const now = response.headers.get("sartor-run"),
    another = server !== null && now !== null && now !== server;
  if (lost || another) told(another ? "restarted" : "back");
  lost = false;
  server = now ?? server;
}

/** POST a question; its answer, or `Refused` with the server's sentence. Where the server is away it is waited for,
 * unless `once`.
 * @param {string} path
 * @param {any} [body]
 * @param {{as?: string, signal?: AbortSignal, tries?: number, once?: boolean}} [how]
 * @returns {Promise<any>} */
export async function ask(path, body, { as = "json", signal, tries = 15, once = false } = {}) {
  const mine = ++asked;
  let response = null;
  const binary = body instanceof Blob || body instanceof ArrayBuffer;
  try {
    response = await fetch(
      path,
      body === undefined
        ? { signal }
        : {
            method: "POST",
            signal,
            body: binary ? body : JSON.stringify(body),
            headers: { "content-type": binary ? "application/octet-stream" : "application/json" },
          },
    );
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response === null || (response.status >= 500 && !/json/.test(response.headers.get("content-type") ?? ""))) {
    // away, or on its way out
    if (!lost) told("lost");
    lost = true;
    if (once) throw new Refused({ message: "the server cannot be reached: is `sartor page` still running?" }, 0);
    await new Promise((done) => setTimeout(done, AGAIN_MS));
    if (signal?.aborted) throw new DOMException("aborted", "AbortError");
    return ask(path, body, { as, signal, tries });
  }
  heard(response);
  warned(path, response, mine);
  if (response.status === 429 && tries > 0) {
    await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("retry-after") || 1)));
    return ask(path, body, { as, signal, once, tries: tries - 1 });
  }
  if (!response.ok) {
    let error = null;
    try {
      error = (await response.json()).error;
    } catch {
      /* no JSON: the sentence below does */
    }
    throw new Refused(error, response.status);
  }
  return as === "json" ? response.json() : as === "text" ? response.text() : response.blob();
}

/** What the bar asks has one list of warnings, whichever view asked it; what a dialog tries out has none. */
const OF_BAR = ["shape", "advise", "compare", "estimate", "lint", "report"];

/** Warnings stay until the same question is answered without them. */
function warned(path, response, number) {
  const [, , name] = path.split("/"),
    key = OF_BAR.includes(name) ? "bar" : name === "design" ? "study" : name;
  const sentences = JSON.parse(response.headers.get("sartor-warnings") ?? "[]");
  if (!response.ok || key === "gemm" || number < (newest.get(key) ?? 0)) return; // a later question has its answer
  newest.set(key, number);
  if (!sentences.length && !heardWarnings.has(key)) return;
  heardWarnings.set(key, sentences);
  warn([...new Set([...heardWarnings.values()].flat())]);
}

/** A line in which only the newest question waits: `next(body)` resolves to its answer, or null when overtaken. */
export function line(path) {
  let running = false,
    waiting = null;
  async function run(job) {
    running = true;
    try {
      job.done(await ask(path, job.body));
    } catch (error) {
      job.fail(error);
    }
    running = false;
    const next = waiting;
    waiting = null;
    if (next) run(next);
  }
  return (body) =>
    new Promise((done, fail) => {
      const job = { body, done, fail };
      if (!running) {
        run(job);
        return;
      }
      waiting?.done(null);
      waiting = job;
    });
}

const shelves = new Map();
/** Entries of a catalogue, fetched once. */
export function catalog(what) {
  if (!shelves.has(what))
    shelves.set(
      what,
      ask(`/api/catalog/${what}`).then((answer) => answer.entries),
    );
  return shelves.get(what);
}

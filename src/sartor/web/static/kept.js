// Files that were loaded here: this browser keeps the last of each kind, so that a reload and the way back show them.

function store(mode, job) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open("sartor", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("files");
    opening.onerror = () => fail(opening.error);
    opening.onsuccess = () => {
      const asked = job(opening.result.transaction("files", mode).objectStore("files"));
      asked.onsuccess = () => {
        opening.result.close();
        done(asked.result);
      };
      asked.onerror = () => fail(asked.error);
    };
  });
}

/** Keep `files` as the last of a kind, in place of those before. */
export async function keep(kind, files) {
  try {
    await store("readwrite", (all) => all.put(files, kind));
  } catch {
    /* a browser that keeps nothing */
  }
}

/** The last files of a kind if the first is called `name`, else null. */
export async function kept(kind, name) {
  try {
    const files = await store("readonly", (all) => all.get(kind));
    return files?.[0]?.name === name ? files : null;
  } catch {
    return null;
  }
}

// Conversations in the IndexedDB of this browser. Without IndexedDB they live as long as the page.

const DATABASE = "triptych-chat";
const STORE = "conversations";
const CURRENT = "triptych-chat-current";

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function open() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return result(request);
}

class Conversations {
  constructor() {
    this.memory = new Map();
    this.database = open().catch(() => null);
  }

  async run(mode, action) {
    const database = await this.database;
    return database && result(action(database.transaction(STORE, mode).objectStore(STORE)));
  }

  /** All conversations, the latest first. */
  async list() {
    const stored = await this.run("readonly", (store) => store.getAll()).catch(() => null);
    return (stored ?? [...this.memory.values()]).sort((one, other) => other.updated - one.updated);
  }

  /** Keep a conversation: `{id, title, updated, model, system, tools, messages}`. */
  async keep(conversation) {
    const copy = structuredClone(conversation);
    this.memory.set(copy.id, copy);
    await this.run("readwrite", (store) => store.put(copy)).catch(() => {});
  }

  async remove(id) {
    this.memory.delete(id);
    await this.run("readwrite", (store) => store.delete(id)).catch(() => {});
  }
}

export const conversations = new Conversations();

/** The conversation that this browser tab shows, so that a reload shows it again. */
export const current = {
  get: () => sessionStorage.getItem(CURRENT),
  set: (id) => sessionStorage.setItem(CURRENT, id),
};

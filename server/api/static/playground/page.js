// The playground: asks the server which models it has, and shows a tab for every task that one of them serves.

import { SERVER, get, key } from "./api.js";
import { el } from "./dom.js";
import { LoadView } from "./load.js";
import { Panel } from "./panel.js";
import { showTabs } from "./tablist.js";
import { connectThemeButton } from "./theme.js";
import { TASKS } from "./tasks.js";

const RETRY_MS = 2000;
const byId = (id) => document.getElementById(id);
const load = new LoadView(byId("load"), onReach);
let shown = "";
let retry;

function notice(text) {
  shown = "";
  byId("tabs").replaceChildren();
  byId("missing").hidden = true;
  byId("about").textContent = "";
  byId("main").replaceChildren(el("p", { id: "notice", class: "notice", role: "status" }, text));
}

function askForKey(text) {
  notice(text);
  byId("key-form").hidden = false;
  byId("key").focus();
}

/** Say that the server does not answer, until it does; then ask for its models again. */
function onReach(isReached) {
  const box = byId("outage");
  if (isReached && !box.hidden) {
    connect();
  }
  box.hidden = isReached;
  box.textContent =
    "The server does not answer. The page tries again every two seconds. Texts and conversations are kept.";
}

/** Ask for the models, and show the page for them. */
async function connect() {
  clearTimeout(retry);
  let info;
  try {
    const about = await (await get("/")).json();
    byId("key-form").hidden = !about.needs_key;
    if (about.needs_key && !key.get()) {
      askForKey("This server needs an API key. Enter it at the top of the page; it is kept in this browser tab only.");
      return;
    }
    info = await (await get("/info")).json();
  } catch (error) {
    if (error.status === 401) {
      askForKey("The server does not accept this API key.");
      return;
    }
    if (!shown) {
      notice("The server does not answer. The page tries again every two seconds.");
    }
    retry = setTimeout(connect, RETRY_MS);
    return;
  }
  if (!info.models.length && !info.on_demand?.models.length) {
    if (!shown) {
      notice("The models are loading…");
    }
    retry = setTimeout(connect, RETRY_MS);
    return;
  }
  show(info);
  load.start();
}

function show(info) {
  const states = info.on_demand?.models.map(({ name, state }) => [name, state]);
  const description = JSON.stringify([info.models, states]);
  if (description === shown) {
    return;
  }
  shown = description;
  const missing = [];
  const groups = TASKS.map(({ title, tasks }) => {
    const tabs = tasks.flatMap((task) => {
      const serves = ({ routes }) => !task.route || routes.includes(task.route);
      const models = info.models.filter(serves).sort(task.order);
      if (task.route && !models.length) {
        missing.push(task);
        return [];
      }
      return [{ id: task.id, title: task.title, panel: new (task.Panel ?? Panel)(task, models, info).element }];
    });
    return { title, tabs };
  });
  showTabs(byId("tabs"), byId("main"), groups);
  showMissing(missing);
  const count = info.models.length === 1 ? "1 model" : `${info.models.length} models`;
  byId("about").textContent = `${count} on ${info.device}, version ${info.version}`;
}

/** One sentence for every task without a tab. */
function showMissing(tasks) {
  const box = byId("missing");
  box.hidden = !tasks.length;
  box.querySelector("summary").textContent = tasks.length === 1 ? "1 more task" : `${tasks.length} more tasks`;
  const items = tasks.map(({ title, needs }) => el("li", {}, el("b", {}, title), ` needs ${needs}.`));
  box.querySelector("ul").replaceChildren(...items);
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  document.dispatchEvent(new Event("keychange"));
  connect();
});
byId("key").value = key.get();
byId("missing").open = false;
document.addEventListener("modelschange", connect);
document.addEventListener("runend", () => load.pollSoon());
connectThemeButton(byId("theme"));
document.title = `Triptych playground, ${new URL(SERVER).host}`;
document.addEventListener("visibilitychange", () => !document.hidden && shown && load.poll());
connect();

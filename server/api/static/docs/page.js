// Shows openapi.json with Swagger UI. Every request carries the API key that the user entered.
// The key stays in the session storage of this browser tab; the theme is the one of the playground.

import { withLoadedModels } from "./examples.js";

const STORAGE_NAME = "triptych-api-key";
const THEME_NAME = "triptych-theme";
const byId = (id) => document.getElementById(id);
const root = document.documentElement;

/** The theme: what the user chose, or what the system has. */
const isDark = () =>
  (localStorage.getItem(THEME_NAME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function showTheme() {
  root.classList.toggle("dark-mode", isDark());
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}

function key() {
  return sessionStorage.getItem(STORAGE_NAME) ?? "";
}

function addKey(request) {
  const sameOrigin = new URL(request.url, location.href).origin === location.origin;
  if (key() && sameOrigin) {
    request.headers = { ...request.headers, Authorization: `Bearer ${key()}` };
  }
  return request;
}

async function getJson(path) {
  const headers = { Accept: "application/json", ...(key() && { Authorization: `Bearer ${key()}` }) };
  const response = await fetch(path, { headers });
  if (!response.ok) {
    throw Object.assign(new Error(`${path}: status ${response.status}`), { status: response.status });
  }
  return response.json();
}

function askForKey(text) {
  byId("key-text").textContent = text;
  byId("key-form").hidden = false;
  byId("key").focus();
}

// The key form replaces the "Authorize" dialog, which does not apply to the request for openapi.json.
const withoutAuthorizeDialog = () => ({
  wrapComponents: { authorizeBtn: () => () => null, authorizeOperationBtn: () => () => null },
});

/** Ask for the key where one is needed, then show the routes. */
async function start() {
  const about = await getJson("./");
  if (about.needs_key && !key()) {
    askForKey("This server needs an API key. Enter it to see the routes; it is kept in this browser tab only.");
    return;
  }
  byId("key-form").hidden = !about.needs_key;
  byId("key-text").textContent = "";
  let spec;
  try {
    const [schema, info] = await Promise.all([getJson("openapi.json"), getJson("info")]);
    spec = withLoadedModels(schema, info);
  } catch (error) {
    if (error.status !== 401) {
      throw error;
    }
    askForKey("The server does not accept this API key.");
    return;
  }
  SwaggerUIBundle({
    spec,
    dom_id: "#swagger-ui",
    deepLinking: true,
    docExpansion: "none",
    filter: true,
    validatorUrl: null,
    requestInterceptor: addKey,
    plugins: [withoutAuthorizeDialog],
  });
}

function report(error) {
  byId("swagger-ui").textContent = `The routes cannot be shown: ${error.message}`;
}

byId("theme").addEventListener("click", () => {
  localStorage.setItem(THEME_NAME, isDark() ? "light" : "dark");
  showTheme();
});
byId("key").value = key();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(STORAGE_NAME, byId("key").value.trim());
  start().catch(report);
});
showTheme();
start().catch(report);

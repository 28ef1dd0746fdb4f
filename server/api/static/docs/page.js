// Shows openapi.json with Swagger UI. Every request carries the API key that the user entered.
// The key stays in the session storage of this browser tab.
"use strict";

const STORAGE_NAME = "triptych-api-key";
const form = document.getElementById("key-form");
const input = document.getElementById("key");
input.value = sessionStorage.getItem(STORAGE_NAME) ?? "";

function addKey(request) {
  const key = sessionStorage.getItem(STORAGE_NAME);
  const sameOrigin = new URL(request.url, location.href).origin === location.origin;
  if (key && sameOrigin) {
    request.headers = { ...request.headers, Authorization: `Bearer ${key}` };
  }
  return request;
}

// The key form replaces the "Authorize" dialog, which does not apply to the request for openapi.json.
const withoutAuthorizeDialog = () => ({
  wrapComponents: { authorizeBtn: () => () => null, authorizeOperationBtn: () => () => null },
});

const ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor: addKey,
  plugins: [withoutAuthorizeDialog],
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(STORAGE_NAME, input.value.trim());
  ui.errActions.clear();
  ui.specActions.download("openapi.json");
});

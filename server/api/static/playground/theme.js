// Light or dark: the system's choice, until the user chooses. The choice is stored in this browser.

const STORAGE_NAME = "triptych-theme";
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

const stored = localStorage.getItem(STORAGE_NAME);
if (stored === "light" || stored === "dark") {
  root.dataset.theme = stored;
}

function current() {
  return root.dataset.theme ?? (system.matches ? "dark" : "light");
}

/** Make a button switch between light and dark. */
export function connectThemeButton(button) {
  const show = () => {
    const next = current() === "dark" ? "light" : "dark";
    button.textContent = next === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Switch to the ${next} theme`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    localStorage.setItem(STORAGE_NAME, root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

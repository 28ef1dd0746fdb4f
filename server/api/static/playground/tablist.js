// The tabs of the page, after the ARIA pattern "Tabs with automatic activation".
// Source: https://www.w3.org/WAI/ARIA/apg/patterns/tabs/

import { el, roveWithArrows } from "./dom.js";

/**
 * Show tabs and their panels.
 * list: the element with role tablist. groups: `[{title, tabs: [{id, title, panel}]}]`.
 * The hash of the address names the selected tab.
 */
export function showTabs(list, main, groups) {
  const tabs = [];
  list.replaceChildren();
  main.replaceChildren();
  for (const group of groups.filter((one) => one.tabs.length)) {
    list.append(el("span", { class: "group", "aria-hidden": "true" }, group.title));
    for (const { id, title, panel } of group.tabs) {
      const tab = el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}` }, title);
      tab.addEventListener("click", () => select(tab));
      panel.id = `panel-${id}`;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tabs.push({ id, tab, panel });
      list.append(tab);
      main.append(panel);
    }
  }

  function select(chosen) {
    for (const { id, tab, panel } of tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      panel.hidden = !selected;
      if (selected) {
        history.replaceState(null, "", `#${id}`);
        tab.scrollIntoView({ block: "nearest", inline: "nearest" });
        scrollTo(0, 0);
        panel.dispatchEvent(new Event("shown"));
      }
    }
  }

  const named = () => tabs.find(({ id }) => `#${id}` === location.hash) ?? tabs[0];
  if (!list.dataset.roving) {
    list.dataset.roving = "yes";
    roveWithArrows(list, () => [...list.querySelectorAll("[role=tab]")], { onMove: (tab) => tab.click() });
  }
  onhashchange = () => select(named().tab);
  select(named().tab);
}

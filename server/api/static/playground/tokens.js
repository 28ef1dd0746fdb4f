// Generated text as tokens. Each token shows its probability, and the alternatives, on hover and on focus.

import { el, roveWithArrows, withProperty } from "./dom.js";

const inspector = document.getElementById("inspector");

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value >= 99.95 ? "100%" : value >= 0.1 ? `${value.toFixed(1)}%` : "< 0.1%";
}

/** A token with its spaces and line ends made visible. */
function visible(token) {
  return token.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "(empty)";
}

function row(token, logprob, isChosen) {
  const bar = withProperty(el("span", { class: "bar" }), "--share", Math.exp(logprob));
  return el(
    "div",
    { class: isChosen ? "row chosen" : "row" },
    el("code", {}, visible(token)),
    bar,
    el("span", {}, percent(logprob)),
  );
}

function describe(token, text) {
  const name = token.token ?? text;
  const top = token.top ?? [];
  const rows = top.map((one) => row(one.token, one.logprob, one.token === name));
  const isListed = top.some((one) => one.token === name);
  return [...(isListed ? [] : [row(name, token.logprob, true)]), ...rows];
}

export function hideInspector() {
  inspector.hidden = true;
}

function inspect(span) {
  const known = (span.tokens ?? []).filter((token) => token.logprob !== undefined);
  if (!known.length) {
    hideInspector();
    return;
  }
  inspector.replaceChildren(...known.flatMap((token) => describe(token, span.textContent)));
  inspector.hidden = false;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = inspector;
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = box.bottom + 6;
  const top = below + height > innerHeight - 8 ? Math.max(8, box.top - height - 6) : below;
  withProperty(withProperty(inspector, "left", `${left}px`), "top", `${top}px`);
}

document.addEventListener("keydown", (event) => event.key === "Escape" && hideInspector());
document.addEventListener("scroll", hideInspector, { capture: true, passive: true });

/** What the tint of the tokens means. */
export function legend() {
  return el("p", { class: "legend" }, "certain", el("i", { "aria-hidden": "true" }), "surprising");
}

export class TokenText {
  constructor() {
    this.element = el("div", { class: "token-text" });
    this.pending = [];
    this.count = 0;
    roveWithArrows(this.element, () => [...this.element.querySelectorAll(".token")]);
    for (const name of ["mouseover", "focusin"]) {
      this.element.addEventListener(name, (event) => event.target.tokens && inspect(event.target));
    }
    for (const name of ["mouseleave", "focusout"]) {
      this.element.addEventListener(name, hideInspector);
    }
  }

  /**
   * Add text that arrived with tokens: `{logprob, token, top}`, all optional. Text may arrive later than its tokens,
   * because the server holds back unfinished characters and beginnings of stop strings.
   */
  append(text, tokens) {
    this.count += tokens.length;
    this.pending.push(...tokens);
    if (text) {
      this.element.append(...spans(text, this.pending));
      this.pending = [];
      this.makeReachable();
    }
  }

  /** One token is reachable with the Tab key, the others from there with the arrow keys. */
  makeReachable() {
    if (!this.element.querySelector('.token[tabindex="0"]')) {
      this.element.querySelector(".token[tabindex]")?.setAttribute("tabindex", "0");
    }
  }

  /** Complete the tokens with their texts and alternatives, known at the end of a stream. */
  complete(tokens) {
    let at = 0;
    for (const span of [...this.element.children]) {
      const own = tokens.slice(at, at + span.tokens.length);
      at += own.length;
      if (own.length) {
        span.replaceWith(...spans(span.textContent, own));
      }
    }
    this.makeReachable();
  }
}

/** One span per token where the tokens' texts make up the text, else one span for all. */
function spans(text, tokens) {
  const areParts = tokens.length > 1 && tokens.map(({ token }) => token).join("") === text;
  return areParts ? tokens.map((token) => span(token.token, [token])) : [span(text, tokens)];
}

function span(text, tokens) {
  const made = el("span", { class: "token" }, text);
  made.tokens = tokens;
  const known = tokens.filter(({ logprob }) => logprob !== undefined);
  if (known.length) {
    made.tabIndex = -1;
    made.setAttribute("aria-describedby", "inspector");
    withProperty(made, "--doubt", 1 - Math.exp(Math.min(...known.map(({ logprob }) => logprob))));
  }
  return made;
}

// Time to first token and tokens per second of one stream, as this browser sees them.

export class Stopwatch {
  constructor() {
    this.started = performance.now();
    this.tokens = 0;
  }

  /** Count the tokens of one event. */
  add(tokens) {
    if (!tokens) {
      return;
    }
    this.last = performance.now();
    if (this.first === undefined) {
      this.first = this.last;
      this.firstTokens = tokens;
    }
    this.tokens += tokens;
  }

  /** Numbers to show: name to text. */
  numbers() {
    const shown = {};
    if (this.first !== undefined) {
      shown["first token"] = `${Math.round(this.first - this.started)} ms`;
      const later = this.tokens - this.firstTokens;
      if (later > 0 && this.last > this.first) {
        shown["tokens/s"] = String(Math.round((1000 * later) / (this.last - this.first)));
      }
      shown.tokens = String(this.tokens);
    }
    return shown;
  }
}

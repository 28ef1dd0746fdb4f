// Keeps the end of a growing text in view, until the reader scrolls up. At the end again, it follows again.

const NEAR_PX = 3;
const UPWARDS = new Set(["PageUp", "ArrowUp", "Home"]);

export class Following {
  /** scroller: the element that scrolls. onChange: called when following starts or ends. */
  constructor(scroller, onChange) {
    this.scroller = scroller;
    this.onChange = onChange;
    this.isOn = true;
    this.top = 0;
    this.touched = 0;
    scroller.addEventListener("wheel", ({ deltaY }) => deltaY < 0 && this.leave(), { passive: true });
    scroller.addEventListener("touchstart", ({ touches }) => (this.touched = touches[0].clientY), { passive: true });
    scroller.addEventListener("touchmove", ({ touches }) => touches[0].clientY > this.touched && this.leave(), {
      passive: true,
    });
    scroller.addEventListener("keydown", ({ key }) => UPWARDS.has(key) && this.leave());
    scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    new ResizeObserver(() => this.grown()).observe(scroller);
  }

  get distance() {
    return this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
  }

  set(isOn) {
    if (isOn !== this.isOn) {
      this.isOn = isOn;
      this.onChange(isOn);
    }
  }

  /** The reader scrolls up. A text that fits the view has nothing to leave. */
  leave() {
    if (this.scroller.scrollTop > 0) {
      this.set(false);
    }
  }

  onScroll() {
    const { scrollTop } = this.scroller;
    if (scrollTop < this.top - 1 && this.distance > NEAR_PX) {
      this.set(false);
    } else if (scrollTop > this.top && this.distance <= NEAR_PX) {
      this.set(true);
    }
    this.top = scrollTop;
  }

  /** The text has grown. */
  grown() {
    if (this.isOn) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.top = this.scroller.scrollTop;
    }
  }

  /** Go to the end and follow. */
  toEnd() {
    this.set(true);
    this.grown();
  }
}

// A field for a recording: a chosen file, a dropped file, or the microphone.

import { el } from "../dom.js";
import { clock } from "./subtitles.js";

const TYPES = "audio/*,video/mp4,video/webm,.flac,.ogg,.opus,.m4a,.mka,.mkv";
const NO_MICROPHONE = "Browsers lend the microphone to pages of this computer and of HTTPS only.";

/** onChange(file): called with the new recording. limits: of /info. */
export class RecordingField {
  name = "file";

  constructor({ max_audio_bytes: most, max_audio_seconds: longest }, onChange) {
    this.onChange = onChange;
    this.control = el("input", { type: "file", id: "recording", accept: TYPES });
    this.control.addEventListener("change", () => this.take(this.control.files[0]));
    this.button = el("button", { type: "button", class: "quiet" }, "Record");
    this.button.addEventListener("click", () => (this.recorder ? this.recorder.stop() : this.record()));
    this.said = el("p", { class: "hint", role: "status" });
    const limits = `Drop a file here, choose one or record. Up to ${Math.round(most / 1e6)} MB and ${clock(longest)}.`;
    this.element = el(
      "div",
      { class: "field wide drop" },
      el("label", { for: "recording" }, "Recording"),
      this.control,
      el("div", { class: "message-actions" }, this.button),
      el("p", { class: "hint" }, limits),
      this.said,
    );
    if (!navigator.mediaDevices?.getUserMedia) {
      this.button.disabled = true;
      this.button.title = NO_MICROPHONE;
    }
    acceptDrops(this.element, (file) => this.take(file));
  }

  read = () => this.file;

  take(file) {
    if (file) {
      this.file = file;
      this.said.textContent = `${file.name}, ${(file.size / 1e6).toFixed(1)} MB`;
      this.onChange(file);
    }
  }

  async record() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      this.said.textContent = `No microphone: ${error.message}`;
      return;
    }
    const parts = [];
    const started = performance.now();
    this.recorder = new MediaRecorder(stream);
    this.recorder.ondataavailable = ({ data }) => parts.push(data);
    this.recorder.onstop = () => {
      clearInterval(timer);
      stream.getTracks().forEach((track) => track.stop());
      const type = this.recorder.mimeType.split(";")[0];
      this.recorder = undefined;
      this.button.textContent = "Record";
      this.control.value = "";
      this.take(new File(parts, `microphone.${type.split("/")[1]}`, { type }));
    };
    this.recorder.start(1000);
    this.button.textContent = "Stop recording";
    const show = () => (this.said.textContent = `Recording, ${clock((performance.now() - started) / 1000)}`);
    const timer = setInterval(show, 500);
    show();
  }
}

/** Take files that are dropped on an element. */
export function acceptDrops(element, onFile) {
  element.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) {
      event.preventDefault();
      element.classList.add("dropping");
    }
  });
  element.addEventListener("dragleave", () => element.classList.remove("dropping"));
  element.addEventListener("drop", (event) => {
    element.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) {
      event.preventDefault();
      onFile(file);
    }
  });
}

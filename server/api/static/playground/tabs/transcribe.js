// The text of a recording, with POST /v1/audio/transcriptions.

import { PageError, post } from "../api.js";
import { el } from "../dom.js";
import { textLine } from "../fields.js";

/** A field for a file; its value is not a part of a JSON body. */
function fileField() {
  const control = el("input", { type: "file", id: "recording", accept: "audio/*,video/mp4,video/webm" });
  const label = el("label", { for: "recording" }, "Recording");
  return {
    name: "file",
    control,
    element: el("div", { class: "field wide" }, label, control),
    read: () => control.files[0],
  };
}

export const transcribe = {
  id: "transcribe",
  title: "Transcribe",
  route: "/v1/audio/transcriptions",
  about: "The text of a recording.",
  needs: "a speech model such as Whisper",
  verb: "Transcribe",
  placeholder: "The text appears here.",

  fields() {
    return { main: [fileField(), textLine("language", "Language", "", { placeholder: "detected", width: "half" })] };
  },

  request(panel) {
    const { file, ...form } = panel.values();
    return { path: "/v1/audio/transcriptions", form, file: file?.name ?? "recording.wav" };
  },

  openai({ form, file }) {
    return { method: "audio.transcriptions.create", fields: form, file, print: ["print(answer.text)"] };
  },

  async run(panel, signal) {
    const { file, ...fields } = panel.values();
    if (!file) {
      throw new PageError("Choose a file first.");
    }
    const form = new FormData();
    form.append("file", file);
    for (const [name, value] of Object.entries(fields)) {
      form.append(name, value);
    }
    const started = performance.now();
    const { text } = await (await post("/v1/audio/transcriptions", form, signal)).json();
    panel.showNumbers({ time: `${Math.round(performance.now() - started)} ms` });
    panel.show(el("p", { class: "marked-text" }, text));
  },
};

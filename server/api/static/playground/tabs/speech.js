// The text of a recording, with POST /v1/audio/transcriptions, or its English translation.

import { PageError, post } from "../api.js";
import { el } from "../dom.js";
import { check, select, textLine } from "../fields.js";
import { formParts } from "../snippets.js";
import { RecordingField } from "../speech/recording.js";
import { clock } from "../speech/subtitles.js";
import { transcriptView } from "../speech/transcript.js";

const TASKS = [
  ["transcriptions", "Text in its language"],
  ["translations", "Translation into English"],
];

export const speech = {
  id: "speech",
  title: "Speech",
  route: "/v1/audio/transcriptions",
  about: "The text of a recording, with the times of its words.",
  needs: "a speech model such as Whisper",
  verb: "Transcribe",
  placeholder: "The text appears here, beside a player. A long recording may take minutes: nothing ends it but Stop.",

  fields(panel) {
    panel.player = el("audio", { controls: true, class: "player", hidden: true });
    panel.recording = new RecordingField(panel.info.limits, (file) => {
      URL.revokeObjectURL(panel.player.src);
      panel.player.src = URL.createObjectURL(file);
      panel.player.hidden = false;
      panel.code.update();
    });
    panel.recording.element.append(panel.player);
    panel.taskField = select("task", "Write", TASKS);
    panel.wordTimes = check("words", "Times of words", true);
    panel.language = textLine("language", "Language", "", { placeholder: "detected", width: "half" });
    return { main: [panel.recording, panel.taskField, panel.language, panel.wordTimes] };
  },

  /** A translation takes no language and has no times of words. */
  update({ taskField, language, wordTimes }) {
    const isTranslation = taskField.control.value === "translations";
    language.element.hidden = isTranslation;
    wordTimes.element.hidden = isTranslation;
  },

  request(panel) {
    const { file, task, words, language, ...form } = panel.values();
    const own = task === "translations" ? {} : { language, timestamp_granularities: granularities(words) };
    const given = Object.entries({ ...form, ...own, response_format: "verbose_json" }).filter(([, value]) => value);
    return { path: `/v1/audio/${task}`, form: Object.fromEntries(given), file: file?.name ?? "recording.wav" };
  },

  openai({ path, form, file }) {
    const method = `audio.${path.split("/").at(-1)}.create`;
    return { method, fields: form, file, print: ["print(answer.text)"] };
  },

  async run(panel, signal) {
    const { file } = panel.values();
    if (!file) {
      throw new PageError("Choose a file first.");
    }
    const { path, form: given } = this.request(panel);
    const form = new FormData();
    form.append("file", file);
    for (const [name, value] of formParts(given)) {
      form.append(name, value);
    }
    const started = performance.now();
    const elapsed = () => (performance.now() - started) / 1000;
    const timer = setInterval(() => panel.showNumbers({ "so far": clock(elapsed()) }), 1000);
    try {
      const answer = await (await post(path, form, signal)).json();
      panel.show(transcriptView(answer, panel.player));
      panel.showNumbers({
        time: `${elapsed().toFixed(1)} s`,
        recording: clock(answer.duration),
        "times as fast": (answer.duration / elapsed()).toFixed(1),
        ...(answer.language && { language: answer.language }),
      });
    } finally {
      clearInterval(timer);
    }
  },
};

function granularities(words) {
  return words ? ["segment", "word"] : undefined;
}

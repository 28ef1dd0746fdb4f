// Subtitles as files, from segments with times in seconds.

function stamp(seconds, comma) {
  const whole = Math.round(seconds * 1000);
  const part = (value, size) => String(Math.floor(value)).padStart(size, "0");
  const parts = [whole / 3_600_000, (whole / 60_000) % 60, (whole / 1000) % 60];
  return `${parts.map((value) => part(value, 2)).join(":")}${comma}${part(whole % 1000, 3)}`;
}

/** A time for people: 1:05 or 1:02:05. */
export function clock(seconds) {
  const [hours, minutes, rest] = stamp(seconds, ".").slice(0, 8).split(":");
  return hours === "00" ? `${Number(minutes)}:${rest}` : `${Number(hours)}:${minutes}:${rest}`;
}

const lines = (segments, comma) =>
  segments.map(({ start, end, text }) => `${stamp(start, comma)} --> ${stamp(end, comma)}\n${text.trim()}\n`);

export const toSrt = (segments) => lines(segments, ",").map((line, at) => `${at + 1}\n${line}`).join("\n");
export const toVtt = (segments) => ["WEBVTT\n", ...lines(segments, ".")].join("\n");
